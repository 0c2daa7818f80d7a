"""The one consume loop that all patterns run on, and what it asks of them."""
