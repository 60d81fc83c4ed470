"""A node's HTTP endpoints: liveness, readiness and metrics."""
