"""The unit of systemd, by systemd's own checks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tidelog_node.settings import parse_settings

from tools.places import ROOT, ToolAbsent, require

UNIT = ROOT / "infra" / "systemd" / "tidelog-node@.service"
PYTHON = "/opt/tidelog/bin/python"
EXPOSURE_MAX = 20  # of 100: «OK» begins at 40


def _analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    try:
        program = require("systemd-analyze")
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit, with a Python that is there: its own is missing on this machine."""
    text = UNIT.read_text()
    assert text.count(PYTHON) == 1
    path = tmp_path / UNIT.name
    path.write_text(text.replace(PYTHON, sys.executable))
    return path


def test_systemd_takes_the_unit(unit: Path) -> None:
    checked = _analyze("verify", "--man=no", "--recursive-errors=no", unit)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_an_unknown_setting_of_the_unit_is_found(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("Restart=always", "Restarts=always"))
    checked = _analyze("verify", "--man=no", "--recursive-errors=no", unit)
    assert "Restarts" in checked.stderr


def test_a_node_may_do_little_on_its_machine(unit: Path) -> None:
    checked = _analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX}", unit)
    assert checked.returncode == 0, checked.stdout[-300:]


def test_a_node_takes_the_environment_of_the_unit() -> None:
    given = dict(
        line.removeprefix("Environment=").replace("%i", "7").split("=", 1)
        for line in UNIT.read_text().splitlines()
        if line.startswith("Environment=")
    )
    settings = parse_settings([], given)
    assert settings.broker_id == 7
    assert str(settings.data_dir) == "/var/lib/tidelog/node-7"
