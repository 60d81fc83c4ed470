"""The command ``tidelog``. What a command needs is imported when it runs, so help is quick."""

from __future__ import annotations

import typer

from tidelog.cli.consume import consume
from tidelog.cli.failures import CommandGroup
from tidelog.cli.produce import produce
from tidelog.cli.tier import status
from tidelog.cli.up import up
from tidelog.cli.verify import verify

app = typer.Typer(
    name="tidelog",
    cls=CommandGroup,
    help="A log that speaks Kafka's protocol and keeps its history in an object store.",
    epilog="Exit status: 0 done, 1 failed, 2 wrong command line, 130 interrupted.",
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

tier = typer.Typer(cls=CommandGroup, help="What lies in the object store.")
tier.command("status")(status)

app.add_typer(tier, name="tier")
app.command("up")(up)
app.command("produce")(produce)
app.command("consume")(consume)
app.command("verify")(verify)
