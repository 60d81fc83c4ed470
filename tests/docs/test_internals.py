"""``ARCHITECTURE.md`` and the pages of ``docs/internals`` name what there is."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tools.places import ROOT

ARCHITECTURE = ROOT / "ARCHITECTURE.md"
NAMED = [ARCHITECTURE, *sorted((ROOT / "docs/internals").glob("*.md"))]
LINKING = [*NAMED, ROOT / "docs/README.md", ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PRODUCT = ("core", "cache_node", "sdk", "spark", "functions")
FOLDERS = (ROOT, ROOT / "core/tidelog_core", ROOT / "cache_node/tidelog_node")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*(?:[.][A-Za-z_]\w*)*")
PATH = re.compile(r"\w+(?:/\w+)+(?:[.](?:py|md|json))?|\w+[.](?:py|md|toml)")
DEFINED = re.compile(
    r"\b(?:def|class) (\w+)|^\s*(?:self[.])?(\w+)(?:: [^=\n]+)?(?: =|$)", re.MULTILINE
)
FOREIGN = {
    "opentelemetry",
    *("kio", "pyproject.toml", "os.sendfile", "sendfile", "__cause__"),
    *("read_committed", "next", "request", "response", "__consumer_offsets", "__transaction_state"),
}


def _spans(page: Path) -> list[str]:
    """Return what a page has in code style, without the calls' brackets."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [span.partition("(")[0] for span in re.findall(r"`([^`\n]+)`", text)]


@cache
def _definitions() -> frozenset[str]:
    """Return the names of modules, classes, functions, fields and variables of the product."""
    paths = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    found = {part for path in paths for part in path.with_suffix("").parts}
    for path in paths:
        found.update(*DEFINED.findall(path.read_text()))
    return frozenset(found)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", NAMED, ids=_name)
def test_names_in_code_style_are_defined(page: Path) -> None:
    settings = (ROOT / "docs/configuration.md").read_text()
    spans = {span for span in _spans(page) if IDENTIFIER.fullmatch(span)}
    assert len(spans) > 5
    unknown = {
        span
        for span in spans - FOREIGN
        if not set(span.split(".")) <= _definitions()
        and f"`{span}`" not in settings
        and not PATH.fullmatch(span)
    }
    assert not unknown


@pytest.mark.parametrize("page", NAMED, ids=_name)
def test_paths_in_code_style_are_there(page: Path) -> None:
    for path in filter(PATH.fullmatch, _spans(page)):
        found = [folder for folder in FOLDERS if (folder / path).exists()]
        assert found or list(FOLDERS[2].rglob(path)), path


@pytest.mark.parametrize("page", LINKING, ids=_name)
def test_links_lead_to_a_file_and_its_section(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" not in target:
            path, _, section = target.partition("#")
            leads_to = page.parent / path if path else page
            assert leads_to.is_file(), target
            titles = re.findall(r"^#+ (.+)$", leads_to.read_text(), flags=re.MULTILINE)
            assert section in {"", *(title.lower().replace(" ", "-") for title in titles)}, target


def test_every_page_is_in_an_index() -> None:
    index = (ROOT / "docs/README.md").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in index, page.name
    last_section = ARCHITECTURE.read_text().partition("## Where to read on")[2]
    for page in NAMED[1:]:
        assert f"](docs/internals/{page.name})" in last_section, page.name


def test_every_package_of_a_node_is_in_the_architecture() -> None:
    table = ARCHITECTURE.read_text().partition("### Inside a node")[2].partition("\n## ")[0]
    rows = [
        re.findall(r"`(\w+)`", row.split("|")[1])
        for row in re.findall(r"^\| `.*", table, re.MULTILINE)
    ]
    packages = {path.name for path in FOLDERS[2].iterdir() if any(path.glob("*.py"))}
    assert sorted(name for row in rows for name in row) == sorted(packages)


def test_layers_of_core_are_those_of_the_import_contract() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (
        contract
        for contract in config["contracts"]
        if contract["type"] == "layers" and contract.get("containers") == ["tidelog_core"]
    )
    layers = [sorted(re.findall(r"\w+", layer)) for layer in reversed(contract["layers"])]
    rows = re.findall(r"^\| (`tidelog_core[^|]+)\|", ARCHITECTURE.read_text(), flags=re.MULTILINE)
    named = [re.findall(r"`(?:tidelog_core[.])?(\w+)`", row) for row in rows]
    table = [name for row in named for name in row]
    assert len(table) == sum(map(len, layers))
    for layer in layers:  # From the lowest, as the table has them.
        assert sorted(table[: len(layer)]) == layer
        del table[: len(layer)]
    for package in config["root_packages"]:
        assert f"\n| `{package}" in ARCHITECTURE.read_text()
