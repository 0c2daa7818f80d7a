"""What the driver decides: which partitions, which ranges, who works on them, when a run ends."""
