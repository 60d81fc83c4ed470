"""The parameters of a Produce request that a gateway keeps with its batches."""

from __future__ import annotations


class ProduceParameters:
    """Parameters of the request that brought a batch."""

    __slots__ = ("acks", "timeout_ms", "transactional_id", "version")

    def __init__(
        self, version: int, acks: int, timeout_ms: int, transactional_id: bytes | None
    ) -> None:
        self.version = version
        self.acks = acks
        self.timeout_ms = timeout_ms
        self.transactional_id = transactional_id
