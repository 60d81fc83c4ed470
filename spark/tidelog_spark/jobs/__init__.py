"""Jobs over the tiered log, each to be given to ``spark-submit``."""
