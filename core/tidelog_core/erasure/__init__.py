"""Erasing a key: from logs, from the tier, and from a topic's whole history."""
