"""The data disk and the page cache before it."""
