"""Deliberate bugs in our own protocol, and the grounds on which the shipped checks must detect each of them."""
