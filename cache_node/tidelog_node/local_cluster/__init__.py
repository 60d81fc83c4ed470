"""``tidelog up``: the nodes of one cluster on this machine, under one parent."""
