"""The direct reader: Spark tasks that hold partitions for a lease, and read, enrich and transact by themselves."""
