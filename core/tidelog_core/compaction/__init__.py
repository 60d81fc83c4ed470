"""Compaction: keeps the newest record of every key, at its offset.

Pure decisions and rewrites. The node's cleaner uses them for local segments, a job for
tiered ones. Erasing one key is the same rewrite with another ``keep``.
Source: Kafka's log cleaner, KIP-98 (transactions) and KIP-534 (delete horizons).
"""
