"""Explain where one record is, or why it was delivered twice."""
