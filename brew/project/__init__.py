"""`brew init`: a small project from a template."""
