"""Options that many commands share."""

from __future__ import annotations

from typing import Annotated

import typer

DEFAULT_BOOTSTRAP = "localhost:9092"

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar="TIDELOG_BOOTSTRAP",
        metavar="HOST:PORT,…",
        help="Nodes to ask first.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
