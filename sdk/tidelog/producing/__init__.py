"""The inside of the producer: batches, their order, and the sender."""
