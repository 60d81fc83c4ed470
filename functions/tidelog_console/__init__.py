"""The console: a web page beside the nodes, on the SDK and the metadata store.

What is asked of nodes is asked as the visitor, so the cluster's ACLs decide what a page shows. What
only the stores know is shown after a node has let the visitor describe its topic, or the cluster.

    settings.py     where it listens, and which cluster it shows
    guard.py        which requests are let in, and the headers of every answer; no I/O
    sessions.py     visitors: who they are, and their connections
    facts.py        what pages ask nodes, as their visitor
    stores.py       what they read from the stores; receipts.py keeps what was read
    tier_map.py, findings.py, record_view.py, formats.py   decide what is shown; no I/O
    stream.py       server-sent events, bounded
    pages/          one module a page; templates/ and static/ are theirs
    server.py       puts it together; listening_socket.py has the socket
"""
