"""Measures single numbers on sandbox brokers, and compares the simulator with real runs."""
