"""Every shell block of the documentation is run, in order, beside what its page is about.

``make test-docs`` runs these tests. ``test_shell_blocks.py`` sees that no block is left out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.page_reader import is_like, reading
from tests.docs.pages import STAGES, on_stage


@pytest.mark.slow
@pytest.mark.timeout(3600)  # eight jobs of Spark, on a busy machine
@pytest.mark.parametrize("page", STAGES, ids=lambda page: page.stem)
def test_every_command_of_the_page_succeeds(page: Path, tmp_path: Path) -> None:
    with reading(tmp_path) as reader, on_stage(STAGES[page], reader):
        assert reader.follow(page) > 0


def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text\n\n    echo first\n    false | cat\n")
    with reading(tmp_path) as reader, pytest.raises(AssertionError, match=r"false \| cat: 1"):
        reader.follow(page)


@pytest.mark.parametrize(
    ("output", "is_shown"),
    [
        ("$1.50 since noon\na   7\nb  8\nmonth: $20\n", True),
        ("$1.50 since noon\nmonth: $20\n", True),
        ("$1.50 since noon\na 7\nyear: $20\n", False),
        ("about $1.50 since noon\nmonth: $20\n", False),
    ],
)
def test_an_output_is_the_pages_but_for_numbers(
    tmp_path: Path, output: str, is_shown: bool
) -> None:
    assert is_like(output, "$0.17 since noon\n…\nmonth: $3,000.00") == is_shown


def test_words_of_an_output_take_the_place_of_the_pages(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text\n\n    echo the id is 17\n    test ID = 17\n")
    with reading(tmp_path) as reader:
        reader.found.append(("ID", r"id is (\d+)"))
        assert reader.follow(page) == 2
