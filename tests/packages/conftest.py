"""The image, which takes minutes to build, for all tests that run it."""

from __future__ import annotations

import pytest

from tools import container
from tools.places import ToolAbsent


@pytest.fixture(scope="session")
def _built_image() -> None:
    """Build the working tree as ``container.IMAGE``."""
    try:
        container.build_image()
    except ToolAbsent as absent:
        pytest.skip(str(absent))
