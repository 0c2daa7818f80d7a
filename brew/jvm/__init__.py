"""JVM parts that pip does not install."""
