"""Consumers that take their zone's replica of a diskless partition for its leader."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.errors import ErrorCode

from tests.node.replication.led_node import led_node


@pytest.mark.parametrize("is_gateway", [False, True])
@pytest.mark.parametrize("is_diskless", [False, True])
async def test_a_position_that_the_replica_has_not_reached_is_waited_for(
    tmp_path: Path, is_gateway: bool, is_diskless: bool
) -> None:
    """The leader has said where the log ends. An error would reset the consumer's position."""
    config = NodeConfig(diskless_gateways_enable=is_gateway)
    async with led_node(tmp_path, config) as node:
        configs = {"diskless.enable": "true"} if is_diskless else {}
        replica = await node.create_topic(leader=2, **configs)
        replica.open()
        found = node.read(0)
        assert (found.error_code, found.records or b"") == (ErrorCode.none, b"")
        ahead = node.read(5)
        waits = is_gateway and is_diskless
        wanted = ErrorCode.none if waits else ErrorCode.offset_out_of_range
        assert ahead.error_code is wanted
        assert not ahead.records
