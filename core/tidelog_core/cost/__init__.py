"""What a cluster costs: counted things, their prices, and the ledger that keeps the counts."""
