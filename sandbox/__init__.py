"""Real servers on this machine, without containers; a module per kind, `process` for what they share."""
