"""The SASL log-in of clients: before their first request, and again on a live connection."""
