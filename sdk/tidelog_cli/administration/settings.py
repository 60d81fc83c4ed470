"""``tidelog config``: every setting, with its meaning, its default and its live values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog_cli.administration.nodes import require_node
from tidelog_cli.clients import administer
from tidelog_cli.failures import UsageError
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_settings, require_choice
from tidelog_cli.output import print_json, print_rows

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog.administering.configs import ResourceType
    from tidelog.administering.results import ConfigEntry
    from tidelog_core.setting import Setting

TOPIC, NODE, NODES, GROUP = "topic", "node", "nodes", "group"
CLIENT_METRICS = "client-metrics"  # a subscription to them
KINDS = (TOPIC, NODE, NODES, GROUP, CLIENT_METRICS)
HIDDEN = "(hidden)"
_OWNERS = {
    TOPIC: "topics",
    NODE: "nodes",
    NODES: "nodes",
    GROUP: "groups",
    CLIENT_METRICS: "subscriptions to client metrics",
}

Owner = Annotated[
    list[str],
    typer.Argument(
        metavar="OWNER [NAME]...",
        help="topic NAME, node ID, group NAME, client-metrics NAME, or nodes (all of them), then"
        " names of settings.",
    ),
]


def list_(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TEXT]...", help="Only settings whose name has one of these."),
    ] = None,
    *,
    of: Annotated[
        str | None,
        typer.Option(help="Only settings of topic, node, group, client-metrics or listener."),
    ] = None,
    json: Json = False,
) -> None:
    """List every setting there is, with its default and meaning; asks no node."""
    declared = _declared()
    if of is not None:
        require_choice("--of", of, tuple(declared))
    rows = [
        _declared_row(owner, setting)
        for owner, settings in declared.items()
        for name, setting in sorted(settings.items())
        if of in (None, owner) and (not words or any(word in name for word in words))
    ]
    if not rows:
        names = {name for settings in declared.values() for name in settings}
        raise UsageError(
            f"no setting has {' or '.join(words or ())} in its name{_near(words, names)}"
        )
    if not json:
        rows = [{**row, "doc": _first_sentence(str(row["doc"]))} for row in rows]
    print_rows(rows, ("of", "name", "default", "type", "meaning"), is_json=json)


def describe(
    owner: Owner,
    *,
    all_: Annotated[bool, typer.Option("--all", help="Include settings at their default.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the values in force of OWNER, as its node has them; by default those that were set.

    Named settings are always shown, with their meaning. Secrets are never shown.
    """
    kind, name, settings = _parse_owner(owner)
    for setting in settings:
        _require_known(kind, setting)

    async def run(admin: Admin) -> dict[str, ConfigEntry]:
        if kind == NODE:
            await require_node(admin, int(name))
        return await admin.describe_configs(
            _resource(kind), name, keys=settings or None, include_documentation=True
        )

    found = administer(bootstrap, run)
    rows = [
        {
            "name": entry.name,
            "value": HIDDEN if entry.is_sensitive else entry.value,
            "source": entry.source,
            "default": _default_of(kind, entry),
            "is_read_only": entry.is_read_only,
            "doc": entry.documentation,
        }
        for _, entry in sorted(found.items())
        if all_ or settings or not entry.is_default
    ]
    if json:
        print_json(rows)
        return
    print_rows(rows, ("setting", "value", "source", "default"), is_json=False)
    for row in rows if settings else ():
        print(f"\n{row['name']}: {row['doc']}")


def set_(
    owner: Annotated[
        list[str],
        typer.Argument(
            metavar="OWNER [NAME=VALUE]...",
            help="topic NAME, node ID, group NAME, client-metrics NAME, or nodes (all of them),"
            " then settings.",
        ),
    ],
    *,
    delete: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Setting to reset to its default; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check that it would be accepted.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set settings of OWNER while the cluster runs; all of them or none."""
    kind, name, pairs = _parse_owner(owner)
    changes = parse_settings("a setting", pairs)
    if not changes and not delete:
        raise UsageError("nothing to change: give NAME=VALUE or --delete NAME")
    for setting in (*changes, *(delete or ())):
        _require_known(kind, setting)

        if kind in (NODE, NODES) and _is_fixed_at_start(setting):
            raise UsageError(
                f"a node takes {setting} only when it starts: give it to `tidelog up` --set"
            )

    async def run(admin: Admin) -> None:
        if kind == NODE:
            await require_node(admin, int(name))
        await admin.alter_configs(
            _resource(kind), name, set=changes, delete=delete or (), validate_only=dry_run
        )

    administer(bootstrap, run)
    done = "would be set" if dry_run else "set"
    print(f"{_title(kind, name)}: {', '.join([*changes, *(delete or ())])} {done}")


def _declared() -> dict[str, Mapping[str, Setting]]:
    from tidelog_core.config import (
        ClientMetricsConfig,
        GroupConfig,
        ListenerConfig,
        NodeConfig,
        TopicConfig,
        settings_of,
    )

    return {
        TOPIC: settings_of(TopicConfig),
        GROUP: settings_of(GroupConfig),
        CLIENT_METRICS: settings_of(ClientMetricsConfig),
        NODE: settings_of(NodeConfig),
        "listener": settings_of(ListenerConfig),
    }


def _declared_row(owner: str, setting: Setting) -> dict[str, object]:
    default = setting.default
    return {
        "of": owner,
        "name": setting.name,
        "default": "" if setting.is_sensitive else setting.format(default),
        "type": f"{setting.type}, {setting.unit}" if setting.unit else setting.type,
        "doc": setting.doc,
        "at_least": setting.at_least,
        "at_most": setting.at_most,
        "one_of": list(setting.one_of),
        "is_read_only": setting.is_read_only,
    }


def _parse_owner(words: list[str]) -> tuple[str, str, list[str]]:
    """Return the kind of owner, its name for the protocol, and the other words."""
    kind, rest = words[0], words[1:]
    require_choice("OWNER", kind, KINDS)
    if kind == NODES:
        return kind, "", rest
    if not rest:
        raise UsageError(f"which {kind}? give its {'id' if kind == NODE else 'name'}")
    if kind == NODE and not (rest[0].isascii() and rest[0].isdecimal()):
        raise UsageError(f"{rest[0]!r} is not a node's id; `tidelog node list` shows them")
    return kind, rest[0], rest[1:]


def _resource(kind: str) -> ResourceType:
    match kind:
        case "topic" | "group" | "client-metrics":
            return kind
    return "node"


def _title(kind: str, name: str) -> str:
    return "all nodes" if kind == NODES else f"{kind} {name}"


def _require_known(kind: str, setting: str) -> None:
    known = _declared()[NODE if kind == NODES else kind]
    if setting not in known and not setting.startswith("listener.name."):
        raise UsageError(
            f"{_OWNERS[kind]} have no setting {setting!r}"
            f"{_near([setting], known) or '; `tidelog config list` shows them'}"
        )


def _is_fixed_at_start(setting: str) -> bool:
    declared = _declared()[NODE].get(setting)
    return declared is not None and declared.is_read_only


def _near(words: Iterable[str] | None, names: Iterable[str]) -> str:
    found = [near for word in words or () for near in get_close_matches(word, sorted(names), n=1)]
    return f"; did you mean {found[0]!r}?" if found else ""


def _default_of(kind: str, entry: ConfigEntry) -> Any:
    last = entry.synonyms[-1] if entry.synonyms else None
    if last is not None and last.source == "default":
        return last.value
    setting = _declared()[NODE if kind == NODES else kind].get(entry.name)
    return None if setting is None or setting.is_sensitive else setting.format(setting.default)


def _first_sentence(text: str) -> str:
    return text.split(". ", maxsplit=1)[0].rstrip(".")
