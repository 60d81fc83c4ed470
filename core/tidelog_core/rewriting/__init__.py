"""Replacing tiered segments with rewritten ones: compaction and erasure."""
