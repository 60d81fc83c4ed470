"""Decodes the values of exported records into columns."""
