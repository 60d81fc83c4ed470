"""What administrators ask: topics, settings, partitions, elections, directories, quotas."""
