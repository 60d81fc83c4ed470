"""``tidelog user`` commands: users who log in by SCRAM or by PLAIN."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.clients import administer
from tidelog_cli.failures import CommandFailed
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, require_choice
from tidelog_cli.output import note, print_json, print_table
from tidelog_cli.passwords import PasswordFile, read_password

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog.administering.results import UserDescription

# Those of tidelog_core, which is not imported for the help. A test compares them.
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16_384

User = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism", metavar="NAME", help=f"{' or '.join(MECHANISMS)}; may be repeated."
    ),
]
Iterations = Annotated[
    int,
    typer.Option(
        metavar="N",
        min=ITERATIONS_MIN,
        max=ITERATIONS_MAX,
        help="How often the password is hashed: more make guessing and logging in slower.",
    ),
]


def list_(*, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, json: Json = False) -> None:
    """List the users and the mechanisms that they can log in by."""

    async def run(admin: Admin) -> list[UserDescription]:
        return list((await admin.describe_users()).values())

    users = administer(bootstrap, run)
    for one in users:
        if one.problem is not None:
            note(f"user {one.user}: {one.problem}")
    if json:
        print_json([{"user": one.user, "iterations": dict(one.iterations)} for one in users])
        return
    rows = [
        (one.user, mechanism, iterations)
        for one in users
        for mechanism, iterations in one.iterations.items()
    ]
    print_table(("user", "mechanism", "iterations"), rows)


def add(
    user: User,
    *,
    mechanism: Mechanisms = None,
    iterations: Iterations = ITERATIONS_MIN,
    password_file: PasswordFile = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Add USER with a password, by default for every mechanism.

    The password is asked for, or read from stdin or a file. PLAIN takes the same one.
    """
    mechanisms = _checked(mechanism) or list(MECHANISMS)
    password = read_password(user, password_file)

    async def run(admin: Admin) -> None:
        if user in await admin.describe_users():
            raise CommandFailed(
                f"user {user} is there already: `tidelog user alter` sets another password"
            )
        await admin.set_password(user, password, mechanisms=mechanisms, iterations=iterations)

    administer(bootstrap, run)
    print(f"user {user} added for {', '.join(mechanisms)}")


def alter(
    user: User,
    *,
    mechanism: Mechanisms = None,
    iterations: Iterations = ITERATIONS_MIN,
    password_file: PasswordFile = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set another password of USER, by default for the mechanisms that the user has.

    The password is asked for, or read from stdin or a file. Connections that are open stay.
    """
    given = _checked(mechanism)
    password = read_password(user, password_file)

    async def run(admin: Admin) -> list[str]:
        mechanisms = given or await _mechanisms_of(admin, user)
        await admin.set_password(user, password, mechanisms=mechanisms, iterations=iterations)
        return mechanisms

    mechanisms = administer(bootstrap, run)
    print(f"user {user} altered for {', '.join(mechanisms)}")


def remove(
    user: User, *, mechanism: Mechanisms = None, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP
) -> None:
    """Remove USER, or only the password for a mechanism. Connections that are open stay."""
    given = _checked(mechanism)

    async def run(admin: Admin) -> list[str]:
        mechanisms = given or await _mechanisms_of(admin, user)
        await admin.delete_credentials(user, mechanisms)
        return mechanisms

    mechanisms = administer(bootstrap, run)
    print(f"user {user} removed for {', '.join(mechanisms)}")


async def _mechanisms_of(admin: Admin, user: str) -> list[str]:
    """Return the user's mechanisms. Raises ``ResourceNotFound``."""
    return list((await admin.describe_users([user]))[user].iterations)


def _checked(mechanisms: list[str] | None) -> list[str]:
    """Return the mechanisms, each once. Raises ``UsageError``."""
    for one in mechanisms or ():
        require_choice("--mechanism", one, MECHANISMS)
    return list(dict.fromkeys(mechanisms or ()))
