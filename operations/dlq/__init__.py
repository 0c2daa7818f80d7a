"""Dead letters: count them, look at one, write them back (docs/decisions/0010)."""
