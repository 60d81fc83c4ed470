"""What visitors are told of errors: a status, a sentence, and what to do. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.errors import ConnectionFailed
from tidelog_core.errors import (
    AuthenticationFailed,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    GroupIdNotFound,
    InvalidConfig,
    InvalidGroupId,
    InvalidTopic,
    RequestTimedOut,
    StoreUnavailable,
    TidelogError,
    TopicAuthorizationFailed,
    UnknownTopicOrPartition,
)
from tidelog_functions.admin.problems import HttpProblem

from tidelog_console.forms import StaleForm
from tidelog_console.reading import NoStore
from tidelog_console.stream import TooManyStreams


@dataclass(frozen=True, slots=True)
class Told:
    """An error for a page."""

    status: int
    title: str
    detail: str
    hint: str = ""


# By class, the first that fits: status, title, and a hint where the error has none.
_TITLES: tuple[tuple[tuple[type[TidelogError], ...], int, str, str], ...] = (
    (
        (TopicAuthorizationFailed, GroupAuthorizationFailed, ClusterAuthorizationFailed),
        403,
        "You may not see this",
        "ask an administrator for an ACL (tidelog acl add)",
    ),
    ((UnknownTopicOrPartition, GroupIdNotFound), 404, "There is no such thing", ""),
    ((InvalidTopic, InvalidGroupId), 404, "There is no such thing", ""),
    ((StaleForm,), 403, "The form was not taken", ""),
    ((TooManyStreams,), 503, "Too many pages are followed", ""),
    ((NoStore,), 501, "The console does not know the store", ""),
    ((InvalidConfig,), 500, "A setting is wrong", "start the console with the nodes' settings"),
    ((AuthenticationFailed,), 401, "The login does not count any more", "log in again"),
    (
        (ConnectionFailed, RequestTimedOut, StoreUnavailable),
        503,
        "The cluster does not answer",
        "is a node running?",
    ),
)


def told(error: TidelogError) -> Told:
    """Return what a visitor is told."""
    if isinstance(error, HttpProblem):
        return Told(error.status, "Not now", str(error), error.hint)
    for kinds, status, title, hint in _TITLES:
        if isinstance(error, kinds):
            return Told(status, title, str(error), error.hint or hint)
    return Told(500, "The cluster refused", str(error), error.hint)
