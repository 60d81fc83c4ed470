"""Functions on one machine: the same handlers with the same events, without AWS."""
