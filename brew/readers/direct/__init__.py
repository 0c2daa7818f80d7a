"""The direct reader: a task holds partitions for a lease, and transacts one range after another."""
