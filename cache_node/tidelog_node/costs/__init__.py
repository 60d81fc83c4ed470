"""This node's costs: collected once a minute, added to the ledger, compared with budgets."""
