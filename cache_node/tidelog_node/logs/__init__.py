"""The log directories of a node's disks, and opening, restoring and removing what is in them."""
