"""What the tests share: a real broker, fresh names."""
