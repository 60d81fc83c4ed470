"""The image of a cluster, how it is built from items, and how it follows the changelog."""
