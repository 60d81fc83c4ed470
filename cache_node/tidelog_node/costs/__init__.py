"""What this node costs: collected once a minute, added to the ledger, compared with budgets."""
