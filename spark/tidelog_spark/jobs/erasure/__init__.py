"""Erases the rows of erased keys from exported tables."""
