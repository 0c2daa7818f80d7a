"""plan -> read -> enrich -> transact, chained by run: exactly once from one topic to another."""
