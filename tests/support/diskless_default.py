"""Whether topics that tests create are diskless, unless they say what they are.

``make test-diskless-clients`` gives this variable, a setting of nodes, to every node that its tests start.
"""

from __future__ import annotations

import os

import pytest

IS_DISKLESS = os.environ.get("TIDELOG_CONFIG_LOG_DISKLESS_ENABLE") == "true"


def replicated_only(reason: str) -> pytest.MarkDecorator:
    """Return the mark of a test that does not apply to diskless topics; ``reason`` says why."""
    return pytest.mark.skipif(IS_DISKLESS, reason=f"not of diskless topics: {reason}")
