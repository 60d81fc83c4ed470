"""Commands that run a cluster, or its console, on this machine."""
