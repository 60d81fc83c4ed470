"""Clients' quotas: how much they have used, and how long they must wait."""
