"""Segments of a log: their files and indexes, how they are searched and flushed."""
