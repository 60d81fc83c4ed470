"""Reads the tier before a replica leads that may have less than the tier.

After an unclean election, or if the disk of the last ISR member has lost the end of the log, the
new leader would otherwise give other bytes to offsets that readers find in the tier.
"""

from __future__ import annotations

import asyncio
import logging

from tidelog_core.errors import TidelogError

from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class LeadChecks:
    """One task per replica that waits to lead. For the node's event loop."""

    def __init__(self, *, replicas: ReplicaManager, catch_up: CatchUp) -> None:
        self._replicas = replicas
        self._catch_up = catch_up
        self._tasks: dict[Replica, tuple[int, asyncio.Task[None]]] = {}
        replicas.roles.uncertain_lead.subscribe(self._start)

    async def close(self) -> None:
        """Cancel the checks; replicas that wait do not become leaders."""
        tasks = [task for _, task in self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, replica: Replica) -> None:
        known = self._tasks.get(replica)
        if known is not None:
            if known[0] == replica.leader_epoch:
                return
            known[1].cancel()
        epoch = replica.leader_epoch
        task = asyncio.create_task(
            self._check(replica, epoch), name=f"before leading {replica.partition}"
        )
        self._tasks[replica] = (epoch, task)

    async def _check(self, replica: Replica, epoch: int) -> None:
        while replica.leader_epoch == epoch:
            try:
                await self._catch_up.before_leading(replica)
            except (TidelogError, OSError) as error:
                logger.warning(
                    "tier check before leading failed, will retry",
                    extra={"partition": str(replica.partition), "reason": str(error)},
                )
            except Exception:
                # Any failure: the partition has no leader until the check succeeds.
                logger.exception(
                    "tier check before leading failed, will retry",
                    extra={"partition": str(replica.partition)},
                )
            else:
                break
            await asyncio.sleep(RETRY_SECONDS)
        self._tasks.pop(replica, None)
        if replica.leader_epoch == epoch:
            self._replicas.confirm_lead(replica, epoch)
