"""JVM parts that pip does not bring."""
