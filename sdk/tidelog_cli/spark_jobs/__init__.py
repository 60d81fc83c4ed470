"""Spark jobs as programs, each to be given to ``spark-submit``."""
