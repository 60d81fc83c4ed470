"""Names the option whose store is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelog_core.errors import InvalidConfig, StoreNotFound


@contextmanager
def naming_option(option: str) -> Iterator[None]:
    """Raise ``InvalidConfig`` with the option where the block raises ``StoreNotFound``."""
    try:
        yield
    except StoreNotFound as error:
        everywhere = "the driver and all executors must have it"
        raise InvalidConfig([f"option {option!r}: {error}; {everywhere}"]) from None
