"""Orders as rows and balances in PostgreSQL, with the position in the same database and the same transaction."""
