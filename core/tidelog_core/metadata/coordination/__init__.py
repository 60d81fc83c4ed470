"""The records of coordinators: groups, their members and offsets, and transactions."""
