"""Jobs over the tiered log, run in parallel by Spark."""
