"""Functions on one machine: the same handlers, called by the same events, without AWS."""
