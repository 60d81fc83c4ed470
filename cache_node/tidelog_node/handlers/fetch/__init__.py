"""Fetch, and where offsets and leader epochs are in a partition."""
