"""What ``import tidelog`` offers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tidelog


@pytest.mark.parametrize("name", tidelog.__all__)
def test_every_public_name_can_be_had(name: str) -> None:
    assert getattr(tidelog, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Prodcer"):
        tidelog.Prodcer  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_alone_loads_no_client() -> None:
    code = "import sys, tidelog; sys.exit('tidelog.consumer' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
