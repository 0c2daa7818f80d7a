"""Checker, fault campaign, wire proxy and report: proves that every order came out exactly once."""
