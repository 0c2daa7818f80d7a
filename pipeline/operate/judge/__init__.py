"""What the commands conclude from what the brokers told; pure."""
