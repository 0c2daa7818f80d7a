"""Dead letters: count them, inspect one, replay them to the input (docs/decisions/0010)."""
