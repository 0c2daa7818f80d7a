"""Prove that every order was processed exactly once: checker, fault campaign, wire proxy and report."""
