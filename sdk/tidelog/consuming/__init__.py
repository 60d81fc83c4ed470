"""The inside of the consumer: positions, fetching, and life in a group."""
