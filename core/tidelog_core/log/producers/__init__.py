"""The producers of a log: what an append checks of them, their state and its snapshots."""
