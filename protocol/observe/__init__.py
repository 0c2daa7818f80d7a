"""What a running program tells of itself: its state as a document, probes, metrics, and the server that shows them."""
