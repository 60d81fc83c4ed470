"""Errors as pages show them: a status, a sentence, and what to do next. Pure."""

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
from tidelog_console.stores import NoStore
from tidelog_console.stream import TooManyStreams


@dataclass(frozen=True, slots=True)
class PageError:
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


def page_error(error: TidelogError) -> PageError:
    """Return the error for a page."""
    if isinstance(error, HttpProblem):
        return PageError(error.status, "Not now", str(error), error.hint)
    for kinds, status, title, hint in _TITLES:
        if isinstance(error, kinds):
            return PageError(status, title, str(error), error.hint or hint)
    return PageError(500, "The cluster refused", str(error), error.hint)
