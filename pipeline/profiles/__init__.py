"""Customer profiles: a table held by each process that writes, which says the tier of a customer."""
