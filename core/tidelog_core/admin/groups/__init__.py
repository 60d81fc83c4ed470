"""Groups: their administration beside a coordinator, and their stored members and offsets."""
