"""The JVM parts that pip does not bring: what they are, where they are, how they get there."""
