"""What a node and three nodes use, beside one and three brokers of Apache Kafka."""
