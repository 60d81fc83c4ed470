"""Replacing tiered segments with rewritten ones: claims, swaps, and compaction."""
