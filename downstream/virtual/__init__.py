"""Virtual partitions: many workers per partition, per-key order preserved, offsets stored without gaps."""
