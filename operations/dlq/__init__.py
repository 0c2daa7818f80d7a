"""Dead letters: count them, inspect one, write them back (docs/decisions/0010)."""
