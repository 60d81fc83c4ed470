"""The result of an event in a group's state machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog_node.groups.assignment.target_computation import TargetComputation
from tidelog_node.groups.classic_messages import JoinAnswer, RequestNumber, SyncAnswer


@dataclass(frozen=True, slots=True)
class Downgrade:
    """A consumer group with classic members only goes on as a classic group."""

    must_rebalance: bool  # else they stay in their generation


@dataclass(slots=True)
class Step:
    """The caller's tasks after an event: store first, then answer.

    If ``must_store`` is set, the group's record has to be durable before any answer is sent:
    the answers announce a generation that must outlive this node.
    """

    must_store: bool = False
    computes: TargetComputation | None = None  # to run; the group then gets the result
    downgrade: Downgrade | None = None  # before any other task
    joins: list[tuple[RequestNumber, JoinAnswer]] = field(default_factory=list)
    syncs: list[tuple[RequestNumber, SyncAnswer]] = field(default_factory=list)
