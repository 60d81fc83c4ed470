"""Options of ``tidelog acl``, named as those of ``kafka-acls.sh``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidelog_cli.failures import UsageError
from tidelog_cli.options import require_choice

if TYPE_CHECKING:
    from enum import IntEnum

    from tidelog_core.security.acl import AclOperation, ResourceType

E = TypeVar("E", bound="IntEnum")

LITERAL, PREFIXED, ANY_PATTERN, MATCH = "literal", "prefixed", "any", "match"


def _names(option: str, what: str) -> typer.models.OptionInfo:
    option_info: typer.models.OptionInfo = typer.Option(
        option, metavar="NAME", help=f"{what}; may be repeated. `*` is every one."
    )
    return option_info


Topics = Annotated[list[str] | None, _names("--topic", "A topic")]
Groups = Annotated[list[str] | None, _names("--group", "A group")]
TransactionalIds = Annotated[list[str] | None, _names("--transactional-id", "A transactional id")]
Tokens = Annotated[list[str] | None, _names("--delegation-token", "A delegation token")]
UserPrincipals = Annotated[
    list[str] | None, _names("--user-principal", "A user, as the owner of tokens")
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation",
        metavar="NAME",
        help="An operation such as Read, Write or DescribeConfigs; may be repeated.",
    ),
]
Pattern = Annotated[
    str,
    typer.Option(
        "--resource-pattern-type",
        metavar="TYPE",
        help=f"{LITERAL}: resources of this name; {PREFIXED}: those whose names begin so.",
    ),
]
WantedPattern = Annotated[
    str,
    typer.Option(
        "--resource-pattern-type",
        metavar="TYPE",
        help=(
            f"{LITERAL} or {PREFIXED}: ACLs of this type with the name; {ANY_PATTERN}: of both;"
            f" {MATCH}: all ACLs that apply to the resource."
        ),
    ),
]


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that a command line names."""

    topics: Sequence[str] | None
    groups: Sequence[str] | None
    transactional_ids: Sequence[str] | None
    tokens: Sequence[str] | None
    users: Sequence[str] | None
    cluster: bool

    def named(self) -> list[tuple[ResourceType, str]]:
        """Return each resource once, by its type and name."""
        from tidelog_core.security.acl import CLUSTER_NAME, ResourceType

        names: Mapping[ResourceType, Sequence[str] | None] = {
            ResourceType.TOPIC: self.topics,
            ResourceType.GROUP: self.groups,
            ResourceType.CLUSTER: [CLUSTER_NAME] if self.cluster else None,
            ResourceType.TRANSACTIONAL_ID: self.transactional_ids,
            ResourceType.DELEGATION_TOKEN: self.tokens,
            ResourceType.USER: self.users,
        }
        return list(
            dict.fromkeys((kind, name) for kind, some in names.items() for name in some or ())
        )


def parse_operations(names: Sequence[str] | None) -> list[AclOperation]:
    """Return the operations of ``--operation``. Raises ``UsageError``."""
    from tidelog_core.security.acl import AclOperation

    return [parse_name(AclOperation, "--operation", name) for name in dict.fromkeys(names or ())]


def parse_name(kind: type[E], option: str, text: str) -> E:
    """Return the member that ``text`` names, in any case; ``DescribeConfigs`` is DESCRIBE_CONFIGS.

    Raises ``UsageError``. ``ANY`` is only for filters, which the other options make.
    """
    known = {one.name.replace("_", ""): one for one in kind if one.name != "ANY"}
    key = text.upper().replace("_", "").replace("-", "")
    if key not in known:
        raise UsageError(f"{option} must be one of {', '.join(one.name for one in known.values())}")
    return known[key]


def require_principal(option: str, principal: str) -> None:
    """Raise ``UsageError`` unless it is a kind and a name."""
    kind, _, name = principal.partition(":")
    if not (kind and name):
        raise UsageError(f"{option} {principal!r} must be a principal such as User:alice")


def require_pattern(pattern: str, *, is_filter: bool) -> None:
    """Raise ``UsageError`` for an unknown pattern type."""
    allowed = (LITERAL, PREFIXED, *((ANY_PATTERN, MATCH) if is_filter else ()))
    require_choice("--resource-pattern-type", pattern, allowed)
