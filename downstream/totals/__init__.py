"""Running totals per customer and per tier: state, changelog, results and offsets in one Kafka transaction."""
