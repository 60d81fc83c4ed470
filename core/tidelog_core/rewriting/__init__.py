"""Putting rewritten segments in the place of tiered ones: compaction and erasure."""
