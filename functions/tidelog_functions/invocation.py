"""One invocation of a function: its settings, stores and time limit.

TIDELOG_METADATA        location of the metadata store
TIDELOG_OBJECTS         location of the segments
TIDELOG_CONFIG_<NAME>   a node setting, with the nodes' value: topics without their own
                        setting use the nodes' default (log.retention.ms and others)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.config_environment import overrides_from_environment
from tidelog_core.errors import ErrorCode, Interrupted, InvalidConfig, TidelogError
from tidelog_core.listener_settings import split_listener_overrides
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.objects.location import opened_object_store
from tidelog_core.objects.store import ObjectStore

# Time reserved for a clean end: finishing the current step, and storing the progress.
RESERVE_MS = 10_000
# The same of functions that answer a request.
ANSWER_RESERVE_MS = 1_000
ANSWER_SECONDS_MAX = 28.0  # API Gateway waits for 30
ANSWER_SECONDS_MIN = 0.1


class Context(Protocol):
    """The part of Lambda's context that functions use."""

    def get_remaining_time_in_millis(self) -> int:
        """Return the remaining time of the invocation."""


class OutOfTime(Interrupted):
    """The time limit is near. Finished steps are durable; the next run continues."""


class PartitionsFailed(TidelogError):
    """Some partitions have problems, named in the message; all others are done."""

    code = ErrorCode.unknown_server_error

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{where}: {what}" for where, what in problems.items()))
        self.problems = problems


class TimeLimit:
    """The usable time of an invocation: until ``reserve_ms`` before its end."""

    def __init__(self, context: Context, *, reserve_ms: int = RESERVE_MS) -> None:
        # At most half of a short time limit is reserved, or no step could begin.
        self._reserve_ms = min(reserve_ms, context.get_remaining_time_in_millis() // 2)
        self._context = context

    def require(self) -> None:
        """Return if there is time for another step. Raises ``OutOfTime``."""
        if self._context.get_remaining_time_in_millis() <= self._reserve_ms:
            raise OutOfTime("the time limit is near")


def seconds_for_answer(context: Context) -> float:
    """Return how long work on a request may take, so that its answer is still sent."""
    seconds = (context.get_remaining_time_in_millis() - ANSWER_RESERVE_MS) / 1000
    return max(ANSWER_SECONDS_MIN, min(ANSWER_SECONDS_MAX, seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSettings:
    """The stores of a function, and the nodes' settings."""

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
        of_nodes, _ = split_listener_overrides(overrides_from_environment(environment))
        node_config = parse_config(NodeConfig, of_nodes)
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
    """Open both stores for the duration of the block."""
    async with (
        opened_metadata_store(settings.metadata_url, may_be_new=True) as store,
        opened_object_store(settings.objects_url) as objects,
    ):
        yield store, objects
