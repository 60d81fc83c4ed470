"""The metrics that clients push (KIP-714): who is subscribed to what, and where they go."""
