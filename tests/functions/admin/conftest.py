"""One API on a new store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.admin_calls import Api, new_cluster
from tests.support.replicated_cluster import MEMORY_DIR


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A cluster of three brokers, of which the third has left; no disk is waited for."""
    with (
        TemporaryDirectory(dir=MEMORY_DIR if MEMORY_DIR.is_dir() else tmp_path) as quick,
        new_cluster(Path(quick)) as api,
    ):
        yield api
