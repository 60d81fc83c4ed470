"""The costs of a cluster: counts, their prices, and the ledger that keeps the counts."""
