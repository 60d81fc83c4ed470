"""What a benchmark says when it is asked for help, before it begins to measure."""

from __future__ import annotations

import importlib
import sys

import pytest

NAMES = ("elastic", "long_tails", "node", "offset_commits", "partitions", "take_over")


@pytest.mark.parametrize("name", NAMES)
def test_help_says_what_is_measured_and_how_long_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"bench.{name}").main()
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert said.startswith(f"usage: python -m bench.{name} ")
    assert "\n\nMeasures " in said
    assert "minute" in said


@pytest.mark.parametrize(
    ("name", "argument"), [("long_tails", "64:x"), ("partitions", "x"), ("take_over", "wider")]
)
def test_an_argument_that_nobody_knows_is_refused(
    name: str, argument: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, argument])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"bench.{name}").main()
    assert ended.value.code == 2
    assert argument in capsys.readouterr().err
