"""How a program reaches a cluster, from its environment, a file of Kafka's, or a context."""
