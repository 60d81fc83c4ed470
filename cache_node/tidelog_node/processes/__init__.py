"""What the processes of a node share: signals, late loading, messages over pipes, versions."""
