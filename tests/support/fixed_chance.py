"""One outcome of chance for each test: what is drawn in a test's process follows from its name.

Ids of topics decide who leads a partition, and a seed decides what a random test does. A test that
fails for one id in a thousand would fail on somebody else's machine, and never again. Processes
that a test starts draw their own ids: two of them must not draw the same.
"""

from __future__ import annotations

import os
import random
import uuid
from types import ModuleType


def fix_chance(name: str) -> None:
    """Draw ``uuid4`` and the functions of ``random`` from the name from now on."""
    random.seed(name)
    _set_source(_SeededOs(f"ids of {name}"))


class _SeededOs(ModuleType):
    """The module ``os`` as ``uuid`` sees it, with bytes that follow from a seed."""

    def __init__(self, seed: str) -> None:
        super().__init__("os")
        self._random = random.Random(seed)

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def urandom(self, count: int) -> bytes:
        return self._random.randbytes(count)


def _set_source(source: ModuleType) -> None:
    setattr(uuid, "os", source)  # noqa: B010  # it is no attribute to mypy


# Two forks of one process would draw the same ids.
os.register_at_fork(after_in_child=lambda: _set_source(os))
