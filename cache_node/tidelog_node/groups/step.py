"""The result of an event in a group's state machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog_node.groups.assignment.target_computation import TargetComputation
from tidelog_node.groups.classic_messages import JoinAnswer, RequestNumber, SyncAnswer


@dataclass(frozen=True, slots=True)
class Downgrade:
    """A consumer group's members, all of them classic by now, go on as a classic group."""

    must_rebalance: bool  # else they go on in the generation that they are in


@dataclass(slots=True)
class Step:
    """What the caller must do after an event: store first, then answer.

    Where ``must_store`` is set, the group's record has to be durable before any of the
    answers goes out: they tell members of a generation that has to outlive this node.
    """

    must_store: bool = False
    computes: TargetComputation | None = None  # to be run, and the group told what comes out
    downgrade: Downgrade | None = None  # before anything else
    joins: list[tuple[RequestNumber, JoinAnswer]] = field(default_factory=list)
    syncs: list[tuple[RequestNumber, SyncAnswer]] = field(default_factory=list)
