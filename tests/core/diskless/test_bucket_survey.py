"""Where chains end, and what they have, by the bucket alone."""

from __future__ import annotations

import pytest
from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import WalFooter, parse_object
from tidelog_core.diskless.wal.header import WalHeader
from tidelog_core.metadata.epoch_chains import ChainName

from tests.core.diskless.test_chain_sealer import data, seal
from tests.support.chain_model.survey import ChainEnd, chain_end, partition_tails
from tests.support.data_objects import build_data_object
from tests.support.wal_objects import CHAIN, HEIR, TOPIC_ID, batch, name


@pytest.mark.parametrize(
    ("headers", "end"),
    [
        ([], ChainEnd(0, False)),
        ([data(0, 0), data(1, 0)], ChainEnd(2, False)),
        ([data(0, 0), data(2, 0)], ChainEnd(1, False)),
        ([data(0, 0), seal(1), data(2, 0)], ChainEnd(1, True)),
        ([seal(3), data(8, 6), data(9, 8)], ChainEnd(10, False)),
        ([seal(3), seal(8), data(9, 6)], ChainEnd(8, True)),
        ([data(7, 5)], ChainEnd(5, False)),
    ],
    ids=["none", "open", "gap", "garbage", "late seal", "collected", "garbage of another"],
)
def test_where_a_chain_ends(headers: list[WalHeader], end: ChainEnd) -> None:
    assert chain_end(headers) == end


def test_a_partitions_tail_goes_on_in_the_next_epochs_chain() -> None:
    def footer(chain: ChainName, sequence: int, base: int, epoch: int) -> WalFooter:
        slices = [WalSlice(TOPIC_ID, 0, epoch, batch(base))]
        place = name(sequence, chain=chain, committed_end=0)
        return parse_object(build_data_object(place, slices).data, key="x")

    later = [footer(HEIR, 0, 4, 1), footer(HEIR, 2, 8, 1)]
    earlier = [footer(CHAIN, 1, 2, 0), footer(CHAIN, 0, 0, 0), footer(CHAIN, 3, 4, 0)]
    tails = partition_tails([later, earlier])
    assert [(one.leader_epoch, one.base_offset) for one in tails[PartitionName(TOPIC_ID, 0)]] == [
        (0, 0),
        (0, 2),
        (1, 4),
    ]
