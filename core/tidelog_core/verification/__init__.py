"""Verifies that all tiered segments are complete and in their place."""
