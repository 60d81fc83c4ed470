"""Produce, and the appends of other zones' nodes."""
