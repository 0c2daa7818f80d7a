"""The one door to the client libraries."""
