"""Streams: micro-batches of growing logs."""
