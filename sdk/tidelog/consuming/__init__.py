"""The implementation of ``Consumer``: positions, fetching and group membership."""
