"""The sink writes rows of a DataFrame into topics, in transactions; see ``writers``."""
