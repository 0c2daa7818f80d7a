"""The report of a campaign: results in; HTML, JSON or Markdown out. Pure: callers read and write the files."""
