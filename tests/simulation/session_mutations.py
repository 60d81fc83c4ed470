"""Deliberate mistakes in fetch sessions, at either end; see ``mutations``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tidelog_node.handlers.fetch.fetch_sessions import FetchSession, FetchSessions, SessionPartition
from tidelog_node.handlers.fetch.handler import FetchHandler
from tidelog_node.replicas.replica import ReplicaWaiter
from tidelog_node.wire.fetch import FetchRequest, FetchTopic, ForgottenTopic

from tests.simulation.following import SimFetcher
from tests.simulation.leading import FetchedAnswer


class KeepsSessionsOfEarlierRegistrations(FetchHandler):
    """A leader whose sessions go on when the follower has registered again."""

    def _session_of(self, request: FetchRequest, version: int) -> FetchSession | int:
        session = self.sessions.find(request.session_id)
        if session is not None and session.replica_epoch != request.replica_epoch:
            session.replica_epoch = request.replica_epoch
            session.mark_all()
        return super()._session_of(request, version)


class SaysNothingOfAnotherLog(SimFetcher):
    """A follower that goes on in its session when it has registered again, with another log."""

    def on_trouble(self) -> None:
        return

    def on_exchanged(self) -> None:
        return

    def _take_registration(self, replica_epoch: int) -> None:
        self._replica_epoch = replica_epoch


class TakesAnyEpoch(FetchHandler):
    """A leader that takes requests of a session in whatever order they come."""

    def _session_of(self, request: FetchRequest, version: int) -> FetchSession | int:
        session = self.sessions.find(request.session_id)
        if session is not None:
            session.next_epoch = request.session_epoch
        return super()._session_of(request, version)


class TakesAnybodysRequest(FetchHandler):
    """A leader that looks at nothing but a session's id, which another one may have had before."""

    def _session_of(self, request: FetchRequest, version: int) -> FetchSession | int:
        session = self.sessions.find(request.session_id)
        if session is not None:
            request = dataclasses.replace(
                request, replica_id=session.replica_id, replica_epoch=session.replica_epoch
            )
        return super()._session_of(request, version)


class _Deaf(SessionPartition):
    """Is not marked dirty by news of its replica."""

    __slots__ = ()

    def _mark(self) -> ReplicaWaiter | None:
        return self.session.poll


class _DeafToChanges(SessionPartition):
    """Is marked by appends alone."""

    __slots__ = ()

    def on_change(self) -> None:
        return


class _WithoutForgetting(FetchSession):
    """Goes on with what it is to forget."""

    __slots__ = ()

    def forget(self, topics: Sequence[ForgottenTopic]) -> None:
        return


def _session_of(kind: type[SessionPartition]) -> type[FetchSession]:
    """Return a session whose partitions are of this kind."""

    class Session(FetchSession):
        __slots__ = ()

        def add(self, topics: Sequence[FetchTopic]) -> None:
            super().add(topics)
            for partition in self.partitions.values():
                partition.__class__ = kind

    return Session


def _sessions_of(kind: type[FetchSession]) -> type[FetchSessions]:
    """Return a node's sessions, all of this kind."""

    class Sessions(FetchSessions):
        def open(self, *given: Any, **more: Any) -> FetchSession | None:
            session = super().open(*given, **more)
            if session is not None:
                session.__class__ = kind
            return session

    return Sessions


# Leaders that do not look at partitions with news; or not where only the high watermark has moved;
# or that go on with partitions that the follower has dropped.
DeafSessions = _sessions_of(_session_of(_Deaf))
SessionsDeafToChanges = _sessions_of(_session_of(_DeafToChanges))
SessionsWithoutForgetting = _sessions_of(_WithoutForgetting)


class TakesLateAnswers(SimFetcher):
    """A follower that takes late and doubled answers for the one that it waits for."""

    def on_answer(self, number: int, answer: FetchedAnswer) -> None:
        if self._under_way:
            super().on_answer(self._under_way[0], answer)
