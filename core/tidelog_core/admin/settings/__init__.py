"""Settings of topics, groups, clients and nodes: which are allowed, and how they are described."""
