"""What a Go client library must do while it and its node are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ecosystem.copying import (
    CopyClient,
    copy_while_both_are_killed,
    produce_while_the_node_is_killed,
)
from tests.support.node_process import NodeProcess
from tools.go_program import GoProgram


@pytest.mark.slow
@pytest.mark.timeout(900)
class GoCopyContract:
    """The library is behind the commands of ``copying``."""

    program: GoProgram

    @pytest.fixture
    def client(self, tmp_path: Path) -> CopyClient:
        built = self.program.command()
        if built is None:
            pytest.skip(f"{self.program.library} is not built: run `make test-ecosystem`")
        return CopyClient((str(built),), tmp_path / "client.log")

    def test_an_idempotent_producer_stores_each_record_once(
        self, client: CopyClient, node: NodeProcess
    ) -> None:
        produce_while_the_node_is_killed(client, node, count=300_000)

    def test_a_group_copies_each_record_once(self, client: CopyClient, node: NodeProcess) -> None:
        copy_while_both_are_killed(client, node, count=30_000)
