"""Spark: sessions, their JVM, and what makes them start quickly."""
