"""Orders as rows and balances in PostgreSQL; the position is kept in the same database and the same transaction."""
