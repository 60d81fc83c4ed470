"""Loops in machine code, and where that is stored."""
