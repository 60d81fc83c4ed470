"""Jobs over the tiered log, spread by Spark."""
