"""This node's replicas: the log and the role of each, and what becomes of both."""
