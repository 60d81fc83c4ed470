"""The drawings of the documentation: small, plain, and readable in the dark and without seeing."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools.places import ROOT

DOCS = ROOT / "docs"
PICTURES = sorted((DOCS / "pictures").glob("*.svg"))
BYTES_MAX = 8_000
SVG = "{http://www.w3.org/2000/svg}"
_COLOUR = re.compile(r"\.(\w+) \{[^}]*#[0-9a-f]{6}")
_SHOWN = re.compile(r"!\[([^\]]*)\]\(([^)]+\.svg)\)")


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_is_small_and_loads_nothing(picture: Path) -> None:
    text = picture.read_text()
    assert len(text) < BYTES_MAX
    names = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(text).iter()}
    assert not names & {"script", "image", "use", "foreignObject", "a"}
    assert not re.search(r"href|src=|@import|url\((?!#)", text)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_every_colour_has_another_in_the_dark(picture: Path) -> None:
    light, dark = picture.read_text().partition("</style>")[0].split("prefers-color-scheme: dark")
    text_of_light = light.replace("text {", ".text {")
    text_of_dark = dark.replace("text {", ".text {")
    assert set(_COLOUR.findall(text_of_light)) == set(_COLOUR.findall(text_of_dark))
    assert "#" not in re.sub(r"url\(#\w+\)", "", picture.read_text().partition("</style>")[2])


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_nothing_is_outside_and_no_text_is_wider_than_its_box(picture: Path) -> None:
    root = ElementTree.fromstring(picture.read_text())
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = [element.attrib for element in root.iter(f"{SVG}rect")][1:]
    spans = [(float(box["x"]), float(box["width"]), float(box["y"])) for box in boxes]
    for element in root.iter(f"{SVG}text"):
        x, y = float(element.attrib["x"]), float(element.attrib["y"])
        assert 0 < y < height
        size = (7.6 if element.get("class") == "name" else 6.3) * len(element.text or "")
        start = x - size * {"middle": 0.5, "end": 1.0}.get(element.get("text-anchor", ""), 0.0)
        assert start >= 0, element.text
        assert start + size <= width, element.text
        inside = [one for one in spans if x == one[0] + one[1] / 2 and one[2] < y < one[2] + 72]
        assert all(size <= 1.1 * one[1] for one in inside), element.text


def test_every_picture_is_shown_and_described() -> None:
    shown: set[Path] = set()
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for words, name in _SHOWN.findall(page.read_text()):
            assert len(words) > 20, page
            shown.add((page.parent / name).resolve())
    assert shown == set(PICTURES)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_says_in_words_what_it_shows(picture: Path) -> None:
    root = ElementTree.fromstring(picture.read_text())
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert len(description.text or "") > len(title.text or "") > 5
    assert root.attrib["aria-labelledby"].split() == [title.get("id"), description.get("id")]
