"""Deliberate bugs in our own protocol, and the scenarios in which the shipped checks must detect each of them."""
