"""The interface of a tracer. The parts of a node have one, or ``None`` where nothing is traced.

Requests of all APIs but Produce and Fetch are traced, and so are copies of segments to the tier,
deletions there, calls of the tier worker, and reads that wait for the tier. Produce and Fetch are
not, because a span costs more than a small request.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Attributes = Mapping[str, str | int]


class Span(Protocol):
    """One thing that is done, from ``with`` to its end."""

    def note_errors(self, names: str) -> None:
        """Note that an answer has errors; exceptions are noted by themselves."""


class Tracer(Protocol):
    """Begins spans. A span begun within another one is a part of it."""

    def span(
        self, name: str, attributes: Attributes, *, carrier: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        """Begin a span. ``carrier`` has the headers of a request, which may name a trace (W3C)."""


class NoSpan:
    """A span that is not recorded."""

    def note_errors(self, names: str) -> None:
        """Do nothing."""


_NO_SPAN = NoSpan()


def span(tracer: Tracer | None, name: str, attributes: Attributes) -> AbstractContextManager[Span]:
    """Begin a span, if there is a tracer."""
    if tracer is None:
        return nullcontext(_NO_SPAN)
    return tracer.span(name, attributes)
