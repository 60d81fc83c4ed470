"""Gateways whose objects a leader refers to before it has read them.

A reference is for ever: once it is committed, its batch is a part of the log, and followers and
readers of the bucket may have what comes behind. So if the object turns out to be damaged, missing
or unreadable, the partition has to wait for it. In sequence nothing is lost: the batch is refused,
and its producer sends it again.

So a leader reads the objects of a gateway's chain first, in sequence, until it has found some of
them whole, and again after one that was not: a gateway with a fault, a bucket that this node may
not read, or a rule that deletes objects of chains stops only the partitions whose batches were
being read. An object that alone is lost, milliseconds after it was stored, still stops its own.
"""

from __future__ import annotations

from tidelog_core.metadata.epoch_chains import ChainName

OBJECTS_MIN = 8  # of a chain that were whole, one after the other


class TrustedGateways:
    """A leader's experience with reads of gateways' chains. For the node's event loop."""

    def __init__(self) -> None:
        # By broker, so that it is no larger than the cluster: its last chain, and how many of its
        # objects were whole since the last one that was not.
        self._whole: dict[int, tuple[ChainName, int]] = {}

    def has(self, chain: ChainName) -> bool:
        """Return whether objects of the chain may be read after the reference is stored."""
        known, count = self._whole.get(chain.broker_id, (chain, 0))
        return known == chain and count >= OBJECTS_MIN

    def note_whole(self, chain: ChainName) -> None:
        """Note that an object of the chain had the announced records."""
        known, count = self._whole.get(chain.broker_id, (chain, 0))
        self._whole[chain.broker_id] = chain, 1 if known != chain else count + 1

    def note_broken(self, chain: ChainName) -> None:
        """Note that an object of the chain had something else, or that it could not be read."""
        self._whole[chain.broker_id] = chain, 0
