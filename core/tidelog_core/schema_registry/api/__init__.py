"""The calls of the registry's HTTP API: who may make them, and what they answer."""
