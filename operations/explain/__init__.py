"""Where one record is, or why it came twice."""
