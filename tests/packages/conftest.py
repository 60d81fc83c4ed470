"""The image, which takes minutes to build, for all tests that run it."""

from __future__ import annotations

import pytest

from tools import container
from tools.places import ToolAbsent


@pytest.fixture(scope="session")
def _built_image() -> None:
    """Build the working tree as ``container.IMAGE``. A build that fails is no reason to skip."""
    try:
        container.check_tools()
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    container.build_image()
