"""Virtual partitions: many workers inside one partition, order per key kept, offsets stored without a hole."""
