"""Audits the tiered history: its objects, its offsets, its producers."""
