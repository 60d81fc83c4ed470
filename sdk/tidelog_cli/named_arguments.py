"""Arguments that name topics and groups, which the shell completes."""

from __future__ import annotations

from typing import Annotated

import typer

from tidelog_cli.completion import complete_group, complete_topic

OnlyTopics = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TOPIC]...",
        help="Only these topics; all by default.",
        autocompletion=complete_topic,
    ),
]
Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topic)
]
Topics = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC...", help="The topics.", autocompletion=complete_topic),
]
Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group.", autocompletion=complete_group)
]
Groups = Annotated[
    list[str],
    typer.Argument(metavar="GROUP...", help="The groups.", autocompletion=complete_group),
]
