"""The options of a read or a write: parsed once, with every problem reported together."""
