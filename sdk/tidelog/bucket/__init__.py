"""Reads partitions from the metadata store and the object store, without nodes."""
