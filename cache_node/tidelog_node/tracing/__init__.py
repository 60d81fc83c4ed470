"""Traces of control requests, of work on the tier and of reads from it."""
