"""Classic and consumer groups, and the offsets that groups commit."""
