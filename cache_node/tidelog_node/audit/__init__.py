"""Records what clients did in the audit topic."""
