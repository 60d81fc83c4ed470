"""The log directories of a node: opens, restores and removes logs."""
