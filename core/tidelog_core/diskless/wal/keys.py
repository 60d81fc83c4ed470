"""The keys of the objects of chains.

    <cluster id>/wal/<broker id, 10 digits>/<chain id>/<sequence, 20 digits>.wal     data or seal
    <cluster id>/wal/<broker id, 10 digits>/<chain id>/<sequence, 20 digits>.ckpt    checkpoint
    <cluster id>/wal/<broker id, 10 digits>/<chain id>/heir-<broker id>-<chain id>-<sequence>

The last is a note that another chain may have got partitions of this one, and has nothing of them
before that sequence. Data and seals have the same key, so that one of them wins. Numbers have
leading zeros, so the store lists a chain in order of its sequences.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.model import INT32_MAX, INT64_MAX
from tidelog_core.tier.keys import HEIR_KEY, WAL_KEY

WAL_SUFFIX = ".wal"
CHECKPOINT_SUFFIX = ".ckpt"


class WalKey(NamedTuple):
    """The parts of the key of a chain's object."""

    cluster_id: str
    chain: ChainName
    sequence: int
    is_checkpoint: bool


class Heir(NamedTuple):
    """A chain that may have got partitions of another one."""

    chain: ChainName
    first_sequence: int  # it has nothing of them in objects before


def chains_prefix(cluster_id: str) -> str:
    """Return the prefix of the keys of all chains, slash included."""
    return f"{cluster_id}/wal/"


def broker_chains_prefix(cluster_id: str, broker_id: int) -> str:
    """Return the prefix of the keys of all chains of one broker, slash included."""
    _check(broker_id, INT32_MAX, "broker id")
    return f"{chains_prefix(cluster_id)}{broker_id:010d}/"


def chain_prefix(cluster_id: str, chain: ChainName) -> str:
    """Return the prefix of the keys of a chain's objects, slash included."""
    return f"{broker_chains_prefix(cluster_id, chain.broker_id)}{chain.chain_id}/"


def wal_key(cluster_id: str, chain: ChainName, sequence: int) -> str:
    """Return the key of the data object or seal with this sequence."""
    _check(sequence, INT64_MAX, "sequence")
    return f"{chain_prefix(cluster_id, chain)}{sequence:020d}{WAL_SUFFIX}"


def checkpoint_key(cluster_id: str, chain: ChainName, sequence: int) -> str:
    """Return the key of the checkpoint of the objects below this sequence."""
    _check(sequence, INT64_MAX, "sequence")
    return f"{chain_prefix(cluster_id, chain)}{sequence:020d}{CHECKPOINT_SUFFIX}"


def parse_wal_key(key: str) -> WalKey | None:
    """Parse the key; return ``None`` if it does not name an object of a chain."""
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


def heir_key(cluster_id: str, chain: ChainName, heir: Heir) -> str:
    """Return the key of the note in ``chain`` that the heir may have got its partitions."""
    _check(heir.chain.broker_id, INT32_MAX, "broker id")
    _check(heir.first_sequence, INT64_MAX, "sequence")
    name = f"{heir.chain.broker_id:010d}-{heir.chain.chain_id}-{heir.first_sequence:020d}"
    return f"{heirs_prefix(cluster_id, chain)}{name}"


def heirs_prefix(cluster_id: str, chain: ChainName) -> str:
    """Return the prefix of the keys of the notes in a chain: greater than those of its objects."""
    return f"{chain_prefix(cluster_id, chain)}heir-"


def parse_heir_key(key: str) -> Heir | None:
    """Parse the key; return ``None`` if it does not name such a note."""
    match = HEIR_KEY.fullmatch(key)
    if match is None or not key.isascii():
        return None
    broker_id, sequence = int(match["heir_broker"]), int(match["sequence"])
    if broker_id > INT32_MAX or sequence > INT64_MAX:
        return None
    return Heir(ChainName(broker_id, UUID(match["heir"])), sequence)


def chain_of_key(key: str) -> ChainName | None:
    """Return the chain that has an object or a note with this key, ``None`` if none has."""
    match = WAL_KEY.fullmatch(key) or HEIR_KEY.fullmatch(key)
    if match is None or not key.isascii() or int(match["broker"]) > INT32_MAX:
        return None
    return ChainName(int(match["broker"]), UUID(match["chain"]))


def _check(number: int, number_max: int, what: str) -> None:
    if not 0 <= number <= number_max:
        raise ValueError(f"{what} {number} is outside [0, {number_max}]")
