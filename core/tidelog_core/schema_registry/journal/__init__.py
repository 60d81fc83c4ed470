"""The journal in the bucket, which has every change of the registry: writing, replay and repair."""
