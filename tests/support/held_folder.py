"""A folder with objects that takes no new ones for a while, and still shows those it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelog_core.objects.key_rules import STAGING


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Have every put fail until the end, as on a disk that is away."""
    staging, away = folder / STAGING, folder.with_name(f"{folder.name}-staging")
    staging.rename(away)
    staging.touch()  # a file in its place
    try:
        yield
    finally:
        staging.unlink()
        away.rename(staging)
