"""The sink: rows of a DataFrame into the topics, in transactions (``writers`` is its door)."""
