"""The audit log: what clients did, as events of a common schema."""
