"""Plans reads: from options and logs to the splits of tasks."""
