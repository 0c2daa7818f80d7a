"""The only package that imports the client libraries."""
