"""The implementation of ``Producer``: batches, sequences and the sender."""
