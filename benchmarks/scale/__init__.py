"""What a larger cluster would do: single numbers measured on a sandbox, a simulator fed with them, and its check."""
