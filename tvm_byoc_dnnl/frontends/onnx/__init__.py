"""The entries of the table, by family."""
