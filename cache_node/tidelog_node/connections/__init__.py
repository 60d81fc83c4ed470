"""The connections of clients: their bytes, their frames and the order of their answers."""
