"""Running totals per customer and per tier: state, its changelog, results and offsets in one Kafka transaction."""
