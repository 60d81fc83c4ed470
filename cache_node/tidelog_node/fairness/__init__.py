"""Client hosts take turns: for the loop's time, for locks, and for the memory of requests."""
