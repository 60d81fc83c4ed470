"""Every shell block of the pages is run by a test, or says why it is not and where it is checked.

``tests/docs/test_pages.py`` runs them (``make test-docs``); these tests only read them.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main
import yaml
from tidelog_cli.commands import app
from tidelog_node.settings import parse_settings

from tests.docs.pages import STAGES
from tests.docs.quoted_commands import problem_of
from tests.docs.shell_blocks import PAGES, Block, blocks_of
from tools.places import ROOT

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
RUN = {ROOT / "docs" / "tutorial.md", *STAGES}  # ``test_tutorial.py`` runs the first one
_FILE = re.compile(r"\btests/[\w/]+(?:\.py)?")
_SETTINGS_BLOCK = re.compile(r"^```text\n(--set .*?)^```$", re.MULTILINE | re.DOTALL)
_PLACEHOLDER = "…"
_LISTENERS = {
    "": ("--data-dir", "data"),
    **{
        name: (
            *(
                "--data-dir",
                "data",
                "--set",
                f"listeners=PLAINTEXT://127.0.0.1:9092,{name}://:9093",
            ),
            *("--set", f"advertised.listeners=PLAINTEXT://127.0.0.1:9092,{name}://x:9093"),
            *("--set", f"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,{name}:SASL_SSL"),
            *("--set", "ssl.keystore.location=/etc/tidelog/node.pem"),
        )
        for name in ("CLIENTS", "OUTSIDE", "READERS")
    },
}


def test_every_block_is_run_or_says_why_not() -> None:
    assert len(BLOCKS) > 80
    silent = [block.where for block in BLOCKS if block.page not in RUN and not block.reason]
    assert silent == [], "give a stage (pages.py), a mark (shell_blocks.py) or a language (```text)"


def test_every_page_with_a_stage_has_a_block_to_run() -> None:
    run = {block.page for block in BLOCKS if not block.reason}
    assert RUN - run == set()


def test_a_reason_names_the_test_that_checks_the_block() -> None:
    for block in BLOCKS:
        if block.reason:
            files = _FILE.findall(block.reason)
            assert files or "this suite" in block.reason, block.where
            assert [name for name in files if not (ROOT / name).exists()] == [], block.where


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_ours_parses(page: Path) -> None:
    commands = [
        (block.where, part)
        for block in blocks_of(page)
        for command, _ in block.commands
        for part in ours(command)
    ]
    problems = [(where, problem_of((part, True))) for where, part in commands]
    assert [one for one in problems if one[1]] == []


def ours(command: str) -> list[str]:
    """Return the calls of ``tidelog`` in a line of the shell."""
    if _PLACEHOLDER in command:
        return []
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=False, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    calls: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;<>"):
            calls.append([])
        else:
            calls[-1].append(word)
    return [" ".join(call) for call in calls if call[:1] == ["tidelog"]]


def test_commands_are_found_behind_pipes_and_before_comments() -> None:
    line = "echo 'a | b' | tidelog produce t -b h:1 && tidelog status  # not: tidelog x"
    assert ours(line) == ["tidelog produce t -b h:1", "tidelog status"]


@pytest.mark.parametrize("name", ["security.md", "upgrade-to-closed.md"])
def test_settings_of_nodes_in_a_block_are_right_together(name: str) -> None:
    blocks = _SETTINGS_BLOCK.findall((ROOT / "docs" / name).read_text())
    assert blocks
    for block in blocks:
        settings = shlex.split(block.replace(_PLACEHOLDER, "x"), comments=True)
        assert parse_settings([*_LISTENERS[_listener_of(block)], *settings], {}) is not None


def _listener_of(block: str) -> str:
    """Return the listener that a block is about and does not declare; "" if there is none."""
    found = re.search(r"listener\.name\.(\w+)|PLAINTEXT,(OUTSIDE)", block)
    return "" if found is None else (found[1] or found[2]).upper()


def test_every_target_of_make_is_one() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(
            r"(?:`|^ {4})make ([a-z-]+(?: [a-z-]+)*)", page.read_text(), re.MULTILINE
        )
        assert {word for words in named for word in words.split()} <= targets, page.name


def test_the_compose_file_starts_a_cluster_that_the_command_understands() -> None:
    document = yaml.safe_load((ROOT / "infra" / "container" / "compose.yaml").read_text())
    (service,) = document["services"].values()
    assert (ROOT / "infra" / "container" / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).exists()
    words = [re.sub(r"\$\{\w+:-(\w+)\}", r"\1", word) for word in service["command"]]
    assert problem_of((shlex.join(["tidelog", *words]), True)) is None


def test_the_values_that_the_page_sets_are_the_charts() -> None:
    values = yaml.safe_load((ROOT / "infra" / "chart" / "tidelog" / "values.yaml").read_text())
    (block,) = [block for block in BLOCKS if block.text.startswith("helm install")]
    names = re.findall(r"--set ([\w.]+?)(?:\.'[^']*')?=", block.text)
    assert len(names) == 4
    for name in names:
        found = values
        for key in name.split("."):
            assert key in found, name
            found = found[key]


def test_a_block_is_split_into_its_commands() -> None:
    def commands(text: str) -> list[tuple[str, str | None]]:
        return Block(ROOT / "README.md", 1, text, "").commands

    assert commands("a \\\n  b\n\n# c\nd") == [("a \\\n  b", None), ("d", None)]
    assert commands("$ a\nx\ny\n$ b\n") == [("a", "x\ny"), ("b", "")]


def test_blocks_in_lists_and_fences_and_behind_marks_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text\n\n    one\n    two\n\n1. Item\n   goes on\n\n        three\n\n```text\nfour\n```\n\n"
        "<!-- not run: why -->\n```sh\nfive\n```\n\n    six\n\n<!-- not run: why too -->\n\n    seven\n"
    )
    found = [(block.line, block.text, block.reason) for block in blocks_of(page)]
    assert found == [
        (3, "one\ntwo", ""),
        (9, "three", ""),
        (17, "five", "why"),
        (20, "six", ""),
        (24, "seven", "why too"),
    ]


def test_the_command_is_the_one_that_is_installed() -> None:
    assert typer.main.get_command(app) is not None
