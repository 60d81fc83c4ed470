"""Clients that log in by SASL: before their first request, and again on a live connection."""
