"""Deliberate bugs in our own protocol, and the grounds on which shipped checks have to see each of them."""
