"""Checks of a cluster before a run, and what each finding means."""
