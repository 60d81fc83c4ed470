"""The leader of a partition: what it may commit, and when it changes the partition's item."""
