"""Leases: a broker's own, and what readings of the others' say about who is alive."""
