"""The chain that this node writes now: made when it is first needed, and again after a deposal.

Before the first one the store is probed: one that ignores ``If-None-Match`` would lose records. So
would a rule of the bucket that deletes objects of chains; rules take days, and reading them takes a
second, so they are read once the chain is open. A node with such a store refuses every partition of
a diskless topic, and serves all others.

The node that took over a chain's last partitions may not have sealed it: leaders hand over without.
Then nobody would collect it. So the chain is sealed when the node stops, and the chains of earlier
processes of this broker once there is another one. If there never is, because the last diskless
topic was deleted, ``AbandonedChains`` calls ``seal_chains_of``: then a worker runs for that alone.

A chain with nothing to put does not notice that somebody has sealed it. While this node's lease has
lapsed, the chain looks at its next place now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from tidelog_core.diskless.bucket.chain_brokers import brokers_with_chains
from tidelog_core.diskless.chain.expiring_rules import check_keeps_chains
from tidelog_core.diskless.chain.start_probe import check_creates_once
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.takeover.chain_seal import seal_chain
from tidelog_core.diskless.wal.epoch_chains import current_chain
from tidelog_core.errors import InvalidConfig, StoreUnavailable, TidelogError, TierUnavailable
from tidelog_core.log_format import TEXT
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.location import parse_object_location
from tidelog_core.objects.store import ObjectStore
from tidelog_core.subscribers import Subscribers
from tidelog_core.tier.store_identity import StoreIdentity

from tidelog_node.diskless.chain.former_chains import seal_former_chains
from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.diskless.chain.wal_client import WalClient
from tidelog_node.diskless.chain.writer_limits import kept_bytes_max, writer_limits
from tidelog_node.node_context import NodeContext
from tidelog_node.tier.client import TierClient
from tidelog_node.tier.lent_memory import LentMemory
from tidelog_node.tier.lent_ranges import (
    READS_AT_ONCE_MAX,
    FolderLender,
    RangeLender,
    WorkerLender,
)
from tidelog_node.tier.protocol import NICENESS
from tidelog_node.tier.worker_command import WorkerCommand
from tidelog_node.tier.worker_starts import CONNECT_S_FIRST

logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 2.0
SEAL_SECONDS_MAX = 2.0  # of the own chain, when the node stops
# Between tries to seal what former processes have left; each waits longer, up to the second one.
FORMER_RETRY_S, FORMER_RETRY_S_MAX = 60.0, 3_600.0
LENT_BYTES = 32 << 20  # of objects that followers are reading; what is not used takes no memory
PROBE_PAUSE_S = 1.0  # after a failed probe: until then callers get its error


class NodeChain:
    """The node's current chain, and the worker that all of its chains use. For the event loop."""

    def __init__(
        self,
        node: NodeContext,
        *,
        objects_url: str,
        socket: Path,
        cache_dir: Path,
        log_format: str = TEXT,
    ) -> None:
        """``socket`` and ``cache_dir`` are those of the WAL worker, not of the tier worker."""
        self._node = node
        self._objects_url = objects_url
        location = parse_object_location(objects_url)
        self._is_local = not location.has_price
        self._folder = Path(location.name) if location.scheme == "file" else None
        self._limits = writer_limits(node.static_config, pays_for_requests=not self._is_local)
        self._memory = _shared_memory() if self._folder is None else None
        self._command = WorkerCommand(
            socket=socket,
            objects=objects_url,
            cache_dir=cache_dir,
            node_config=node.static_config,
            log_format=log_format,
            niceness=0,  # Producers wait for it.
            wal_bytes=kept_bytes_max(self._limits),
            memory=self._memory,
        )
        self._identity = StoreIdentity.at(objects_url, node.store, lambda: node.view.image)
        self.client = TierClient(
            self._command, tracer=node.tracer, health=node.health, identity=self._identity
        )
        self.client.start()
        self.fullness = Subscribers[[bool]]()  # of the current chain
        self.deposed = Subscribers[[OwnedChain]]()
        self.chain: OwnedChain | None = None  # None: none is needed, or the last one has ended
        self.refusal: InvalidConfig | None = None  # why this store can have no chains
        self._is_probed = False
        self._has_read_rules = False
        self._sealing_former: asyncio.Task[None] | None = None  # begun with the first chain
        self._begun: set[ChainName] = set()  # by this process
        self._failed_probe: TidelogError | None = None
        self._failed_at_s = 0.0
        self._opening = asyncio.Lock()
        self._readers = ThreadPoolExecutor(READS_AT_ONCE_MAX, "tidelog-objects")  # of the folder
        self._is_closed = False
        self._running: set[asyncio.Task[None]] = set()

    @property
    def is_full(self) -> bool:
        """Whether clients' requests must wait: as many bytes are pending as may be."""
        return self.chain is not None and self.chain.is_full

    def lender(self) -> RangeLender:
        """Return the reader of objects that followers need for a moment."""
        if self._folder is not None:
            memory = LentMemory(LENT_BYTES, is_shared=False)
            return FolderLender(self._folder, memory, self._readers, store=self.client)
        return WorkerLender(self.client, self._memory)

    async def worker_status(self) -> Mapping[str, Any] | None:
        """Return the worker's counters, ``None`` if none runs or it does not answer."""
        return await self.client.status_if_running()

    async def current(self) -> OwnedChain:
        """Return the chain that takes partitions now.

        Raises ``InvalidConfig`` if the store can have no chains, else retriable errors of the store
        and ``TierUnavailable``.
        """
        chain = self.chain
        if chain is not None:
            return chain
        async with self._opening:
            if self.chain is None:
                await self.check_store()
                self.chain = self._open()
            return self.chain

    async def check_store(self) -> None:
        """Make sure that the store creates an object once. Raises as ``current``."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        if self._is_probed:
            return
        loop = asyncio.get_running_loop()
        if self._failed_probe is not None and loop.time() - self._failed_at_s < PROBE_PAUSE_S:
            raise self._failed_probe.with_traceback(None)
        try:
            await check_creates_once(self.client, self._node.view.image.cluster_id, uuid4())
        except InvalidConfig as error:
            raise self._refuse(error) from None
        except (TidelogError, OSError) as error:
            failed = error if isinstance(error, TidelogError) else StoreUnavailable(str(error))
            self._failed_probe, self._failed_at_s = failed, loop.time()
            raise failed from error
        self._is_probed = True

    def _refuse(self, error: InvalidConfig) -> InvalidConfig:
        problems = [f"{self._objects_url}: {problem}" for problem in error.problems]
        self.refusal = InvalidConfig(problems)
        logger.error("object store cannot have diskless topics", extra={"reason": str(error)})
        return self.refusal

    async def seal_chains_of(self, broker_id: int) -> bool:
        """Seal the chains of a broker that is gone, or of its former processes, for no heir.

        Returns whether that is done.
        """
        own = self.chain
        # Nothing will be written to another one.
        heir = ChainName(self._node.broker_id, uuid4()) if own is None else own.name
        async with self._bucket() as store:
            return await self._seal_chains_of(broker_id, heir, store)

    async def brokers_with_chains(self) -> set[int]:
        """Return the brokers that have chains in the bucket. Raises the store's errors."""
        async with self._bucket() as store:
            return await brokers_with_chains(store, self._node.view.image.cluster_id)

    @asynccontextmanager
    async def _bucket(self) -> AsyncIterator[ObjectStore]:
        """Return the bucket through the running worker, or through one that is started for it."""
        if self.chain is not None or self.client.is_connected:
            yield self.client
            return
        folder = await asyncio.to_thread(TemporaryDirectory, prefix="tidelog-sealing-")
        passing = TierClient(
            replace(
                self._command,
                socket=Path(folder.name) / self._command.socket.name,
                cache_dir=Path(folder.name) / "cache",
                niceness=NICENESS,
                wal_bytes=0,
                memory=None,
            ),
            tracer=self._node.tracer,
            identity=self._identity,
            # It ends with the calls, so they wait as long as it may take to start.
            first_calls_s_max=CONNECT_S_FIRST,
        )
        passing.start()
        try:
            yield passing
        finally:
            await passing.close()
            await asyncio.to_thread(folder.cleanup)

    async def close(self, seconds_max: float) -> None:
        """Wait until nothing is pending, at most so long; then end the chain and the worker."""
        self._is_closed = True
        if self._sealing_former is not None:
            self._sealing_former.cancel()
            await asyncio.gather(self._sealing_former, return_exceptions=True)
        if self.chain is not None:
            chain = self.chain
            await chain.close(seconds_max)
            if not (chain.is_deposed or chain.buffered_bytes) and chain.next_sequence:
                await self._seal(chain)
        await asyncio.gather(*self._running)
        await self.client.close()
        self._readers.shutdown(wait=False, cancel_futures=True)
        if self._memory is not None:
            self._memory.close()

    async def _seal(self, chain: OwnedChain) -> None:
        """Seal the own chain, which takes nothing more. If it fails the next process tries."""
        cluster_id = self._node.view.image.cluster_id
        try:
            async with asyncio.timeout(SEAL_SECONDS_MAX):
                await seal_chain(
                    ChainStore(self.client, cluster_id),
                    chain.name,
                    cluster_id=cluster_id,
                    heir=chain.name,
                    clock_ms=self._node.clock_ms,
                )
        except (TidelogError, TimeoutError) as error:
            logger.info(
                "own chain not sealed, the next process seals it",
                extra={"reason": str(error) or repr(error)},
            )

    def _open(self) -> OwnedChain:
        if self._is_closed:
            raise TierUnavailable("this node is stopping")
        name = ChainName(self._node.broker_id, uuid4())
        self._begun.add(name)
        chain = OwnedChain(
            WalClient(self.client, self._node.view.image.cluster_id, name, is_local=self._is_local),
            limits=self._limits,
            traffic=self._node.counters.chain,
            clock_ms=self._node.clock_ms,
        )
        chain.fullness.subscribe(self.fullness.notify)
        chain.deposed.subscribe(self._on_deposed)
        for work in (chain.run(), self._watch(chain)):
            task = asyncio.create_task(work, name=f"chain {name.chain_id}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        if self._sealing_former is None:
            self._sealing_former = asyncio.create_task(self._seal_former(name))
        logger.info("chain begins", extra={"chain": str(name.chain_id)})
        return chain

    async def _watch(self, chain: OwnedChain) -> None:
        """Read the rules, once; look at the chain's next place while the lease has lapsed."""
        if not self._has_read_rules:
            self._has_read_rules = True
            await self._check_rules(chain)
        while not await chain.ends_within(LOOK_INTERVAL_S):
            if not self._node.membership.can_serve():
                await chain.look()

    async def _seal_former(self, own: ChainName) -> None:
        """Seal the chains of the broker's former processes; repeat until all are sealed."""
        delay_s, is_done = FORMER_RETRY_S, False
        while not is_done:
            try:
                is_done = await self._seal_chains_of(self._node.broker_id, own, self.client)
            except Exception:  # Nobody else would say why they are never collected.
                logger.exception("sealing of former chains broke, will retry")
            if not is_done:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, FORMER_RETRY_S_MAX)

    async def _seal_chains_of(self, broker_id: int, heir: ChainName, store: ObjectStore) -> bool:
        image = self._node.view.image
        partitions = (one for some in image.partitions_by_topic.values() for one in some)
        return await seal_former_chains(
            store,
            image.cluster_id,
            broker_id,
            heir,
            begun=self._begun,
            # Those are for heirs.
            named={last.chain for one in partitions if (last := current_chain(one.wal))},
            clock_ms=self._node.clock_ms,
        )

    async def _check_rules(self, chain: OwnedChain) -> None:
        try:
            await check_keeps_chains(self.client, self._node.view.image.cluster_id)
        except InvalidConfig as error:
            self._refuse(error)
            chain.abandon(str(error))
        except TidelogError as error:  # The right to read them may be missing.
            logger.warning(
                "lifecycle rules of the bucket cannot be read; none may delete objects of chains",
                extra={"reason": str(error)},
            )

    def _on_deposed(self, chain: OwnedChain) -> None:
        if self.chain is chain:
            self.chain = None
        self.deposed.notify(chain)


def _shared_memory() -> LentMemory | None:
    try:
        return LentMemory(LENT_BYTES, is_shared=True)
    except OSError as error:
        logger.info("followers' reads are copied more often", extra={"reason": str(error)})
        return None
