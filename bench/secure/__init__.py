"""What TLS, ACLs and quotas cost a node, beside Apache Kafka where it has the same."""
