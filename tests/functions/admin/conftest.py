"""One API on a new store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.functions.admin.calling import Api, new_cluster


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A cluster of three brokers, of which the third has left."""
    with new_cluster(tmp_path) as api:
        yield api
