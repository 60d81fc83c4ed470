"""What every function needs of one invocation: its settings, its stores, its time.

TIDELOG_METADATA        location of the metadata store
TIDELOG_OBJECTS         location of the segments
TIDELOG_CONFIG_<NAME>   a node setting, as the nodes have it: topics without a setting of
                        their own get the nodes' default (log.retention.ms and others)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.config_environment import overrides_from_environment
from tidelog_core.errors import ErrorCode, InvalidConfig, TidelogError
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.objects.location import opened_object_store
from tidelog_core.objects.store import ObjectStore

# What a function keeps back to end in order: the step under way, and to write where it stopped.
RESERVE_MS = 10_000


class Context(Protocol):
    """What a function asks of Lambda's context."""

    def get_remaining_time_in_millis(self) -> int:
        """Return how long the invocation may still take."""


class OutOfTime(TidelogError):
    """The time limit is near. What is done is done; the next run goes on."""

    code = ErrorCode.request_timed_out


class PartitionsFailed(TidelogError):
    """Some partitions are in trouble, each named with what it is; all the others are done."""

    code = ErrorCode.unknown_server_error

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{where}: {what}" for where, what in problems.items()))
        self.problems = problems


class TimeLimit:
    """How long an invocation goes on: until ``reserve_ms`` before its end."""

    def __init__(self, context: Context, *, reserve_ms: int = RESERVE_MS) -> None:
        # A function of a few seconds keeps back a half at most, or it would never begin.
        self._reserve_ms = min(reserve_ms, context.get_remaining_time_in_millis() // 2)
        self._context = context

    def require(self) -> None:
        """Return if there is time for one more step. Raises ``OutOfTime``."""
        if self._context.get_remaining_time_in_millis() <= self._reserve_ms:
            raise OutOfTime("the time limit is near")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSettings:
    """Where a function works, and the nodes' settings."""

    metadata_url: str
    objects_url: str
    node_config: NodeConfig


def parse_function_settings(environment: Mapping[str, str]) -> FunctionSettings:
    """Return the settings. Raises ``InvalidConfig`` with every problem at once."""
    problems = [
        f"environment variable {name} is required"
        for name in ("TIDELOG_METADATA", "TIDELOG_OBJECTS")
        if not environment.get(name)
    ]
    node_config = NodeConfig()
    try:
        node_config = parse_config(NodeConfig, overrides_from_environment(environment))
    except InvalidConfig as error:
        problems += error.problems
    if problems:
        raise InvalidConfig(problems)
    return FunctionSettings(
        metadata_url=environment["TIDELOG_METADATA"],
        objects_url=environment["TIDELOG_OBJECTS"],
        node_config=node_config,
    )


@asynccontextmanager
async def open_stores(
    settings: FunctionSettings,
) -> AsyncIterator[tuple[MetadataStore, ObjectStore]]:
    """Give both stores for the length of the block."""
    async with (
        opened_metadata_store(settings.metadata_url) as store,
        opened_object_store(settings.objects_url) as objects,
    ):
        yield store, objects
