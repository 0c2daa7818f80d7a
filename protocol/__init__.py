"""What all sides agree on: names, records, positions, errors, and the one door to the Kafka client."""
