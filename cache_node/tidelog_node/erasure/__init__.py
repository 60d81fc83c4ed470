"""What a node does for an erasure: it rewrites its local segments, or lets them go."""
