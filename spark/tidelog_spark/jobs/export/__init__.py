"""Appends tiered records to a table, each once."""
