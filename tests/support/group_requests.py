"""Requests to a group's state machine, with defaults for the fields a test does not set."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from tidelog_node.groups.classic import join_group, offset_commits, sync_group
from tidelog_node.groups.classic.classic_group import ClassicGroup
from tidelog_node.groups.classic_messages import (
    GroupCaller,
    GroupLimits,
    JoinAnswer,
    JoinRequest,
    RequestNumber,
    SyncAnswer,
    SyncRequest,
)
from tidelog_node.groups.step import Step

NO_DELAY = GroupLimits(initial_rebalance_delay_ms=0, members_max=1000)

_numbers = itertools.count(1)


def subscription(*topics: str) -> bytes:
    """Return a member's metadata of the consumer protocol, version 0, without user data."""
    names = b"".join(len(t).to_bytes(2, "big") + t.encode() for t in topics)
    return b"\x00\x00" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def subscription_with_owned(topics: Iterable[str], owned: Iterable[tuple[str, int]]) -> bytes:
    """Return a member's metadata of version 1, which names the partitions it owns."""
    topics = list(topics)
    plain = subscription(*topics)
    parts = [(1).to_bytes(2, "big"), plain[2:], len(owned := sorted(owned)).to_bytes(4, "big")]
    for topic, number in owned:
        parts += [len(topic).to_bytes(2, "big"), topic.encode(), (1).to_bytes(4, "big")]
        parts.append(number.to_bytes(4, "big"))
    return b"".join(parts)


def join(
    member_id: str = "",
    *,
    new: str = "new",
    instance: str | None = None,
    protocols: tuple[tuple[str, bytes], ...] = (("range", subscription("t")),),
    protocol_type: str = "consumer",
    session_timeout_ms: int = 10_000,
    rebalance_timeout_ms: int = 60_000,
    version: int = 9,
) -> JoinRequest:
    return JoinRequest(
        number=RequestNumber(next(_numbers)),
        member_id=member_id,
        group_instance_id=instance,
        new_member_id=new,
        client_id="client",
        client_host="/127.0.0.1",
        protocol_type=protocol_type,
        protocols=protocols,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        must_know_member_id=version >= 4,
        can_skip_assignment=version >= 9,
    )


def sync(
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    *,
    instance: str | None = None,
    protocol_type: str | None = "consumer",
    protocol_name: str | None = None,
) -> SyncRequest:
    return SyncRequest(
        number=RequestNumber(next(_numbers)),
        member_id=member_id,
        group_instance_id=instance,
        generation=generation,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments=tuple((assignments or {}).items()),
    )


class Driver:
    """Feeds one group, and keeps every answer by the number of its request."""

    def __init__(self, group: ClassicGroup | None = None) -> None:
        self.group = ClassicGroup("g", now_ms=0) if group is None else group
        self.now_ms = 0
        self.stored_count = 0
        self.limits = NO_DELAY
        self.joins: dict[RequestNumber, JoinAnswer] = {}
        self.syncs: dict[RequestNumber, SyncAnswer] = {}

    def take(self, step: Step) -> None:
        self.stored_count += step.must_store
        self.joins.update(step.joins)
        self.syncs.update(step.syncs)

    def join(self, request: JoinRequest) -> JoinRequest:
        self.take(join_group.join(self.group, request, now_ms=self.now_ms, limits=self.limits))
        return request

    def sync(self, request: SyncRequest) -> SyncRequest:
        self.take(sync_group.sync(self.group, request, now_ms=self.now_ms))
        return request

    def advance(self, ms: int) -> None:
        """Move the time forward, and expire deadlines whenever the group wants to be woken."""
        end_ms = self.now_ms + ms
        while self.group.wake_at_ms is not None and self.group.wake_at_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.group.wake_at_ms)
            self.take(self.group.expire(self.now_ms))
        self.now_ms = end_ms

    def heartbeat(self, member_id: str, generation: int, instance: str | None = None):  # type: ignore[no-untyped-def]
        return self.group.heartbeat(
            GroupCaller(member_id, instance, generation), now_ms=self.now_ms
        )

    def commit(self, member_id: str, generation: int, instance: str | None = None):  # type: ignore[no-untyped-def]
        return offset_commits.validate_commit(
            self.group, GroupCaller(member_id, instance, generation), now_ms=self.now_ms
        )

    def member(self, name: str, **options: object) -> JoinRequest:
        """Join a dynamic member with the two requests that it takes."""
        first = self.join(join(new=name, **options))  # type: ignore[arg-type]
        assert self.joins[first.number].member_id == name
        return self.join(join(name, **options))  # type: ignore[arg-type]

    def stable(self, *names: str, **options: object) -> int:
        """Make a stable group of the names, the first leading; return the generation."""
        for name in names:
            self.member(name, **options)
        self.advance(0)
        self.advance(1)
        while True:
            generation = self.group.generation
            for name in self.group.roster:
                if name.awaited_join is None and self.group.phase.value == "PreparingRebalance":
                    self.join(join(name.member_id, **options))  # type: ignore[arg-type]
            if self.group.phase.value == "CompletingRebalance":
                break
        assigned = {name: f"assigned {name}".encode() for name in names}
        for name in names:
            self.sync(sync(name, generation, assigned if name == names[0] else None))
        assert self.group.phase.value == "Stable"
        return generation
