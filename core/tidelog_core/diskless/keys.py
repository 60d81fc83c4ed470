"""The keys of the objects of chains.

    <cluster id>/wal/<broker id, 10 digits>/<chain id>/<sequence, 20 digits>.wal     data or seal
    <cluster id>/wal/<broker id, 10 digits>/<chain id>/<sequence, 20 digits>.ckpt    checkpoint

Data and seals have the same key, so that one of them wins. Numbers have leading zeros, so the
store lists a chain in order of its sequences.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from tidelog_core.config import INT32_MAX, INT64_MAX
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.tier.keys import WAL_KEY

WAL_SUFFIX = ".wal"
CHECKPOINT_SUFFIX = ".ckpt"


class WalKey(NamedTuple):
    """The parts of the key of a chain's object."""

    cluster_id: str
    chain: ChainName
    sequence: int
    is_checkpoint: bool


def chains_prefix(cluster_id: str) -> str:
    """Return the prefix of the keys of all chains, slash included."""
    return f"{cluster_id}/wal/"


def chain_prefix(cluster_id: str, chain: ChainName) -> str:
    """Return the prefix of the keys of a chain's objects, slash included."""
    _check(chain.broker_id, INT32_MAX, "broker id")
    return f"{chains_prefix(cluster_id)}{chain.broker_id:010d}/{chain.chain_id}/"


def wal_key(cluster_id: str, chain: ChainName, sequence: int) -> str:
    """Return the key of the data object or seal with this sequence."""
    _check(sequence, INT64_MAX, "sequence")
    return f"{chain_prefix(cluster_id, chain)}{sequence:020d}{WAL_SUFFIX}"


def checkpoint_key(cluster_id: str, chain: ChainName, sequence: int) -> str:
    """Return the key of the checkpoint of the objects below this sequence."""
    _check(sequence, INT64_MAX, "sequence")
    return f"{chain_prefix(cluster_id, chain)}{sequence:020d}{CHECKPOINT_SUFFIX}"


def parse_wal_key(key: str) -> WalKey | None:
    """Parse the key; return ``None`` if it is not that of a chain's object."""
    match = WAL_KEY.fullmatch(key)
    if match is None or not key.isascii():
        return None
    broker_id, sequence = int(match["broker"]), int(match["sequence"])
    if broker_id > INT32_MAX or sequence > INT64_MAX:
        return None
    return WalKey(
        cluster_id=match["cluster"],
        chain=ChainName(broker_id, UUID(match["chain"])),
        sequence=sequence,
        is_checkpoint=match["kind"] == "ckpt",
    )


def _check(number: int, number_max: int, what: str) -> None:
    if not 0 <= number <= number_max:
        raise ValueError(f"{what} {number} is outside [0, {number_max}]")
