"""The generated reference pages are what the code says. If not: ``make docs``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node_process import NodeProcess
from tools import (
    alert_reference,
    api_reference,
    cli_reference,
    error_reference,
    limit_reference,
    timeout_reference,
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("reference")
    with NodeProcess(folder / "node", config=api_reference.ALL_APIS) as node:
        yield node


def test_the_page_of_commands_is_up_to_date() -> None:
    assert cli_reference.PAGE.read_text() == cli_reference.cli_page()


def test_the_page_of_errors_is_up_to_date() -> None:
    assert error_reference.PAGE.read_text() == error_reference.error_page()


def test_the_page_of_alerts_is_up_to_date() -> None:
    assert alert_reference.PAGE.read_text() == alert_reference.alert_page()


def test_the_page_of_limits_is_up_to_date() -> None:
    assert limit_reference.PAGE.read_text() == limit_reference.limit_page()


def test_the_page_of_timeouts_is_up_to_date() -> None:
    assert timeout_reference.PAGE.read_text() == timeout_reference.timeout_page()


async def test_the_page_of_apis_is_up_to_date(node: NodeProcess) -> None:
    versions = await api_reference.versions_of("127.0.0.1", node.port)
    assert api_reference.PAGE.read_text() == api_reference.api_page(versions)


@pytest.mark.parametrize("page", [cli_reference.PAGE, error_reference.PAGE, api_reference.PAGE])
def test_no_row_of_a_table_lacks_a_text(page: Path) -> None:
    """The second or third column says what the first one is."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `--")]
    assert all(len(row.split("|")[2].strip()) > 3 for row in rows)
