"""The page of a campaign: results in, HTML, JSON or Markdown out; pure, files are read and written outside."""
