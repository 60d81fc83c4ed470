"""Addresses of a registry that are refused."""

from __future__ import annotations

import pytest
from tidelog.arrow.registry_source import RegistrySource
from tidelog.errors import InvalidConfig
from tidelog_cli.failures import UsageError
from tidelog_cli.registry_client import RegistryClient

WRONG = ("user:secret@node1:8081", "ftp://user:secret@node1:8081")


@pytest.mark.parametrize("url", WRONG)
def test_the_error_of_a_wrong_address_has_no_password(url: str) -> None:
    with pytest.raises(InvalidConfig, match="not 'node1:8081'") as of_source:
        RegistrySource(url)
    with pytest.raises(UsageError, match="not 'node1:8081'") as of_client:
        RegistryClient(url)
    assert "secret" not in f"{of_source.value}{of_client.value}"
