"""Decodes records' values into columns, by their schemas."""
