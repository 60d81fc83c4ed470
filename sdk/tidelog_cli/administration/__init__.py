"""Commands on topics, groups, transactions, nodes, settings and quotas, by Kafka's protocol."""
