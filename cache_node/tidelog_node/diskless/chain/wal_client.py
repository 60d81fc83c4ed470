"""The node's calls of its WAL worker: objects are built, kept and put there."""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import ObjectName, Snapshot
from tidelog_core.diskless.wal.header import WalHeader, parse_header
from tidelog_core.metadata.epoch_chains import ChainName

from tidelog_node.tier.client import TierClient
from tidelog_node.tier.wal_messages import (
    Fields,
    WalBuildPutRequest,
    WalBuildRequest,
    WalDropRequest,
    WalIndexRequest,
    WalPutRequest,
    WalStoreRequest,
)


class WalClient:
    """The objects of one chain, by way of the worker. For one event loop."""

    def __init__(
        self, client: TierClient, cluster_id: str, chain: ChainName, *, is_local: bool = False
    ) -> None:
        """``is_local``: objects are files of this machine, and are built where they stay."""
        self.is_local = is_local
        self._client = client
        self._chains = ChainStore(client, cluster_id)
        self.cluster_id = cluster_id
        self.chain = chain

    async def build(self, request: WalBuildRequest) -> WalHeader:
        """Have the object built and kept, and return its header. Equal requests have equal answers.

        Raises ``WalBuildFailed`` if the files do not have the batches, ``WalFull`` until objects
        are dropped, ``TierUnavailable``.
        """
        return _header(await self._client.call(request), request.name)

    async def build_and_put(
        self, request: WalBuildRequest, *, timeout_s: float, on_built: Callable[[WalHeader], None]
    ) -> PutOutcome:
        """Have the object built and put by one request; return the outcome.

        ``on_built`` gets its header, in a bucket when the PUT begins. Local objects are built
        where they stay, and the header comes with the outcome. Raises as ``build``, what
        ``on_built`` raises, and ``StoreUnavailable`` if a local object was not built in time.

        With ``WorkerAway``, ``WalBuildFailed`` and ``WalFull`` nothing was put. After other errors
        the object may be written, now or later.
        """
        if self.is_local:
            answer = await self._client.call(WalStoreRequest(request, timeout_s))
            on_built(_header(answer, request.name))
        else:
            answer = await self._client.call(
                WalBuildPutRequest(request, timeout_s),
                lambda event: on_built(_header(event, request.name)),
            )
        return PutOutcome(answer["outcome"])

    async def put(self, sequence: int, *, timeout_s: float) -> PutOutcome:
        """Put the object once more by one request; return the outcome.

        Raises ``WalNotBuilt`` if the worker does not have it, ``TierUnavailable`` if the worker is
        not there or has ended: the object may be written then, now or later.
        """
        request = WalPutRequest(self.cluster_id, self.chain, sequence, timeout_s)
        return PutOutcome((await self._client.call(request))["outcome"])

    async def drop(self, below: int) -> None:
        """Have the objects below the sequence forgotten. Raises ``TierUnavailable``."""
        await self._client.call(WalDropRequest(self.chain, below))

    async def write_index(
        self,
        committed_end: int,
        *,
        first_kept: int,
        created_ms: int,
        snapshots: tuple[Snapshot, ...] = (),
    ) -> None:
        """Have checkpoints written of the objects that are there, below the committed end.

        The last one gets the snapshots. Raises the store's errors, and ``TierUnavailable``.
        """
        request = WalIndexRequest(
            self.cluster_id, self.chain, committed_end, first_kept, created_ms, snapshots
        )
        await self._client.call(request)

    async def header(self, sequence: int) -> WalHeader | None:
        """Return the header in the store; see ``ChainStore.header``."""
        return await self._chains.header(self.chain, sequence)


def _header(answer: Fields, name: ObjectName) -> WalHeader:
    return parse_header(bytes.fromhex(answer["header"]), key=f"{name.chain} {name.sequence}")
