"""How a log is opened, recovered after a crash, and repaired."""
