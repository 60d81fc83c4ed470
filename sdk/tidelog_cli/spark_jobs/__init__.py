"""Spark jobs as programs for ``spark-submit``."""
