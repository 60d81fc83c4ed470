"""Transactions, and the producers of transactional and idempotent records."""
