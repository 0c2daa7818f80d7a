"""The consume loop shared by all patterns, and the interface that a pattern implements."""
