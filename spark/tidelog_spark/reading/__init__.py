"""Reads a split's rows: ranges of objects, or a tail from a leader."""
