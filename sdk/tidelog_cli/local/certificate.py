"""``tidelog certificate``: an authority of one's own, and the nodes' certificate."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from tidelog_cli.failures import CommandFailed


def certificate(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where the files are, or are made.")
    ],
    *,
    host: Annotated[
        list[str],
        typer.Option(
            metavar="HOST",
            help="A name or address that clients connect to, such as '*.example.org'; repeat it.",
        ),
    ],
) -> None:
    """Make a key and a certificate for the nodes' TLS, signed by an authority in FOLDER.

    The authority is made by the first call; clients trust its certificate, authority.pem. node.pem
    is what nodes need (ssl.keystore.location). Nobody needs authority.key.pem but the next call.
    """
    if find_spec("cryptography") is None:
        raise CommandFailed("this needs a library: pip install 'tidelog[node]'")
    from tidelog_cli.local.secured import make_certificate

    made = make_certificate(folder, host)
    print(f"nodes: {made.node_pem}")
    print(f"clients: {made.authority_pem}")
