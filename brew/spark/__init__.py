"""Spark: sessions, their JVM, and its fast start."""
