"""What the driver decides: which partitions, which ranges, which worker, and when a run ends."""
