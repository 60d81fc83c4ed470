"""What clients ask first: the APIs of a node, the cluster's brokers and topics, coordinators."""
