"""``tidelog quota`` commands: how much users, clients and addresses may do in a second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.clients import administer, opened_admin
from tidelog_cli.failures import UsageError
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_settings
from tidelog_cli.output import counted, print_json, print_table

if TYPE_CHECKING:
    from tidelog.administering.results import QuotaUse
    from tidelog_core.quotas.quota_entity import QuotaEntity

# Those of tidelog_core, which is not imported for the help. A test compares them.
KEYS_OF_CLIENTS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
KEYS_OF_ADDRESSES = ("connection_creation_rate",)


def _default(option: str, of: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(option, help=f"Every {of} without its own.")
    return info


User = Annotated[str | None, typer.Option(metavar="NAME", help="The user, without `User:`.")]
ClientId = Annotated[str | None, typer.Option(metavar="ID", help="The client's id.")]
Ip = Annotated[str | None, typer.Option(metavar="ADDRESS", help="The client's address.")]
UserDefault = Annotated[bool, _default("--user-default", "user")]
ClientDefault = Annotated[bool, _default("--client-id-default", "client id")]
IpDefault = Annotated[bool, _default("--ip-default", "address")]
Values = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME=VALUE...",
        help=f"{', '.join(KEYS_OF_CLIENTS)}; {KEYS_OF_ADDRESSES[0]} of an address.",
    ),
]
_Given = tuple[str | None, bool]  # a name, and whether the default is meant
Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these; all by default.")
]


def list_(
    *,
    user: User = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_id_default: ClientDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the quotas, by default all of them."""
    wanted = _entity((user, user_default), (client_id, client_id_default), (ip, ip_default))
    found = administer(bootstrap, lambda admin: admin.describe_quotas(wanted))
    ordered = sorted(found.items(), key=lambda entry: str(entry[0]))
    if json:
        print_json([{"entity": dict(one.parts()), "quotas": quotas} for one, quotas in ordered])
        return
    rows = [
        (str(one), name, f"{value:g}" if value % 1 else f"{value:.0f}")
        for one, quotas in ordered
        for name, value in sorted(quotas.items())
    ]
    print_table(("entity", "quota", "value"), rows)


def set_(
    values: Values,
    *,
    user: User = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_id_default: ClientDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set quotas of a user, a client id, both together, or an address."""
    entity = _required(
        _entity((user, user_default), (client_id, client_id_default), (ip, ip_default))
    )
    wanted = {name: _number(name, text) for name, text in parse_settings("", values).items()}
    _require_names(entity, wanted)
    administer(bootstrap, lambda admin: admin.alter_quotas({entity: wanted}))
    print(f"{counted(len(wanted), 'quota')} of {entity} set")


def remove(
    names: Names = None,
    *,
    user: User = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_id_default: ClientDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove quotas of a user, a client id, both together, or an address."""
    entity = _required(
        _entity((user, user_default), (client_id, client_id_default), (ip, ip_default))
    )
    all_names = KEYS_OF_CLIENTS if entity.ip is None else KEYS_OF_ADDRESSES
    unwanted = dict.fromkeys(names or all_names)
    _require_names(entity, unwanted)
    administer(bootstrap, lambda admin: admin.alter_quotas({entity: unwanted}))
    print(f"{', '.join(names) if names else 'all quotas'} of {entity} removed")


def top(
    *,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, max=1_000, help="How many of each node.")
    ] = 20,
    every: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Ask again and again, until Ctrl-C."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show who uses most of their quotas now, on which node, and how long they must wait."""

    async def run() -> None:
        async with opened_admin(bootstrap) as admin:
            while True:
                _show_uses(await admin.describe_quota_use(count=count), is_json=json)
                if every is None:
                    return
                await asyncio.sleep(every)

    asyncio.run(run())


def _show_uses(uses: Sequence[QuotaUse], *, is_json: bool) -> None:
    if is_json:
        print_json([asdict(one) for one in uses])
        return
    rows = [
        (
            one.node_id,
            one.user or "any",
            one.client_id or "any",
            one.key,
            f"{one.rate:.0f}" if one.rate >= 10 else f"{one.rate:.2g}",
            f"{one.part:g}" if one.part == one.quota else f"{one.part:g} of {one.quota:g}",
            f"{one.rate / one.part:.0%}",
            f"{one.throttle_time_ms / 1000:.1f} s" if one.throttle_time_ms else "",
        )
        for one in uses
    ]
    print_table(("node", "user", "client id", "quota", "rate", "limit", "used", "wait"), rows)


def _entity(user: _Given, client_id: _Given, ip: _Given) -> QuotaEntity:
    from tidelog_core.errors import InvalidRequest
    from tidelog_core.quotas.quota_entity import QuotaEntity, quota_entity

    entity = QuotaEntity(_name("user", *user), _name("client-id", *client_id), _name("ip", *ip))
    if entity == QuotaEntity():
        return entity
    try:
        return quota_entity(dict(entity.parts()))
    except InvalidRequest as error:
        raise UsageError(str(error)) from error


def _name(option: str, name: str | None, is_default: bool) -> str | None:
    """Return the part of an entity: "" is the default. Raises ``UsageError``."""
    if name is not None and is_default:
        raise UsageError(f"give --{option} or --{option}-default, not both")
    if name == "":
        raise UsageError(f"--{option} must not be empty")
    return "" if is_default else name


def _required(entity: QuotaEntity) -> QuotaEntity:
    if not any(entity.parts()):
        raise UsageError("name whom it is for: --user, --client-id or --ip, or one with -default")
    return entity


def _require_names(entity: QuotaEntity, names: dict[str, float] | dict[str, None]) -> None:
    allowed = KEYS_OF_CLIENTS if entity.ip is None else KEYS_OF_ADDRESSES
    for name in names:
        if name not in allowed:
            raise UsageError(f"{name} is no quota of {entity}; there are {', '.join(allowed)}")


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name}={text}: a number is needed") from None
