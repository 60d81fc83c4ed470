"""Run one node process on a machine of the cluster: claim a broker id, start, renew, drain.

Theory of operation. A process claims its broker id in a table (``tidelog_ids``). Where nodes hold
the only copies of records, the ids of a zone are ``100 * zone + 1`` and up, as many as the zone has
processes, so that a replacement machine gets the id of the lost one, and with it the partitions.
Where all topics are diskless, nodes hold nothing: ids are the lowest free ones of 1001 to 1999, in
whichever zone, and there may be any number of nodes (``--zone-number 0``).

A process restarted on the same machine gets its own id again, and each id has its own data
directory, so a disk is never used by another broker.

SIGTERM, the auto scaling group's termination of the instance, or the end of a spot instance stops
the node cleanly: it hands its leaderships over. A terminated instance, and a task of ECS, releases
its ids. The last process of an instance to do so completes the group's lifecycle hook, if it is
named, so that the instance goes at once.

While the node answers, systemd hears so; if it hangs, systemd kills it and starts it again
(``tidelog_health``). A task of ECS has a health check instead.

Exit status: the node's; 0 after SIGTERM and before the instance is terminated.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from tidelog_health import Health, Notifier, Probe
from tidelog_hook import TerminationHook
from tidelog_ids import IDS_PER_ZONE_MAX, SHARED_IDS, BrokerIds, ClaimLost
from tidelog_instance import METADATA_URL, Instance, InstanceMetadata
from tidelog_place import Place
from tidelog_task import Task

logger = logging.getLogger("tidelog_launch")

OPEN, SECURE = "PLAINTEXT", "SASL_SSL"  # listeners for clients, by the names of their protocols
# The listener for clients that come through an endpoint service (PrivateLink): one name, and a
# port for each broker, by its id. By health checks the load balancer finds the broker's machine.
PRIVATE_LINK = "PRIVATELINK"
PRIVATE_LINK_NODES_MAX = 4  # of a zone, as in infra/private_link.yaml
CLIENT_ACCESS = {"open": (OPEN,), "both": (OPEN, SECURE), "secure": (SECURE,)}
CLAIM_SECONDS = 120
RENEWALS_PER_CLAIM = 4
RETRY_SECONDS = 5.0
CHECK_SECONDS = 2.0  # between two checks of the node and of the instance's state
STOP_SECONDS_MAX = 75.0  # of the 90 that systemd and the lifecycle hook allow


@dataclass(frozen=True, slots=True)
class Launch:
    """The command line's options."""

    table: str
    hosting: str  # «instance» or «task»
    zone_number: int  # 0: the ids are not of a zone
    processes_per_instance: int
    process: int  # its number, from 0
    client_access: str  # a key of CLIENT_ACCESS
    port_first: int
    secure_port_first: int
    inter_broker_port_first: int  # 0: ports that are free
    private_link_host: str  # empty: no PrivateLink
    private_link_port_first: int
    data_dir: Path
    metadata_url: str
    claim_seconds: int
    http_port_first: int  # 0: no probes and metrics
    group: str  # the auto scaling group whose hook is completed; empty: none is
    hook: str
    node_arguments: Sequence[str]

    def candidates(self, instance_count: int) -> list[int]:
        """Return the ids of a zone with so many machines; ids with logs here come first."""
        if not self.zone_number:
            return self._sorted(SHARED_IDS)
        first = self.zone_number * IDS_PER_ZONE_MAX + 1
        count = instance_count * self.processes_per_instance
        if not 1 <= count < IDS_PER_ZONE_MAX:
            raise ValueError(f"a zone has from 1 to {IDS_PER_ZONE_MAX - 1} nodes, not {count}")
        return self._sorted(range(first, first + count))

    def known(self, candidates: Sequence[int]) -> list[int]:
        """Return those of the ids that a process here may have had before."""
        if self.zone_number:
            return list(candidates)
        return [broker_id for broker_id in candidates if self.logs_of(broker_id).exists()]

    def _sorted(self, ids: Sequence[int]) -> list[int]:
        return sorted(ids, key=lambda broker_id: (not self.logs_of(broker_id).exists(), broker_id))

    def logs_of(self, broker_id: int) -> Path:
        """Return the data directory of the broker."""
        return self.data_dir / f"broker-{broker_id}"

    def probe(self, address: str) -> Probe:
        """Return the client listener that tells whether the node answers."""
        name = CLIENT_ACCESS[self.client_access][0]
        first = self.port_first if name == OPEN else self.secure_port_first
        return Probe(address, first + self.process, has_tls=name == SECURE)

    def private_link_port(self, broker_id: int) -> int:
        """Return the broker's port for clients of PrivateLink. Raises ``ValueError``."""
        number = broker_id - self.zone_number * IDS_PER_ZONE_MAX - 1
        if number >= PRIVATE_LINK_NODES_MAX:
            raise ValueError(
                f"PrivateLink serves {PRIVATE_LINK_NODES_MAX} nodes of a zone, and this is "
                f"number {number + 1}: deploy fewer, or without PrivateLinkHost"
            )
        of_zone = (self.zone_number - 1) * PRIVATE_LINK_NODES_MAX
        return self.private_link_port_first + of_zone + number

    def listeners(self, broker_id: int, *, address: str, host: str) -> list[tuple[str, str, int]]:
        """Return name, advertised host and port of each listener for clients.

        Clients connect to the address without TLS, and to the host's name with it, for which the
        nodes' certificate is.
        """
        places = {
            OPEN: (address, self.port_first + self.process),
            SECURE: (host, self.secure_port_first + self.process),
        }
        found = [(name, *places[name]) for name in CLIENT_ACCESS[self.client_access]]
        if self.private_link_host and SECURE in CLIENT_ACCESS[self.client_access]:
            port = self.private_link_port(broker_id)
            found.append((PRIVATE_LINK, self.private_link_host, port))
        return found

    def command(self, broker_id: int, *, address: str, host: str, zone: str) -> list[str]:
        """Return the node's command line. Raises ``ValueError``."""
        first = self.inter_broker_port_first
        inter_broker_port = first + self.process if first else 0
        found = self.listeners(broker_id, address=address, host=host)
        listeners = ",".join(f"{name}://{address}:{port}" for name, _, port in found)
        advertised = ",".join(f"{name}://{to}:{port}" for name, to, port in found)
        protocols = ",".join(
            f"{name}:{SECURE if name == PRIVATE_LINK else name}" for name, _, _ in found
        )
        http: list[str] = []
        if self.http_port_first:
            http += ["--http-host", address, "--http-port"]
            http.append(str(self.http_port_first + self.process))
        return [
            *(sys.executable, "-m", "tidelog_node", "--broker-id", str(broker_id)),
            *("--set", f"listener.security.protocol.map={protocols}"),
            *("--set", f"listeners={listeners}"),
            *("--set", f"advertised.listeners={advertised}"),
            *("--inter-broker-port", str(inter_broker_port)),
            *("--data-dir", str(self.logs_of(broker_id)), "--rack", zone, *http),
            *self.node_arguments,
        ]


def main() -> int:
    """Run until the node ends or has to stop."""
    logging.basicConfig(level="INFO", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("botocore").setLevel("WARNING")
    launch = _parse(sys.argv[1:])
    wants_stop: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: wants_stop.append(number))
    place = _place(launch)
    ids = BrokerIds(
        boto3.client("dynamodb", config=Config(connect_timeout=3, read_timeout=5)),
        launch.table,
        owner=f"{place.name}/{launch.process}",
        claim_seconds=launch.claim_seconds,
    )
    candidates = launch.candidates(place.instance_count() if launch.zone_number else 0)
    broker_id = _claim(ids, candidates, launch.known(candidates), wants_stop, launch.claim_seconds)
    if broker_id is None:
        return 0
    command = launch.command(broker_id, address=place.address, host=place.host, zone=place.zone)
    logger.info("broker id %d taken", broker_id)
    return _run(
        command,
        ids,
        broker_id,
        probe=launch.probe(place.address),
        place=place,
        wants_stop=wants_stop,
        claim_seconds=launch.claim_seconds,
    )


def _place(launch: Launch) -> Place:
    """Return where this process runs. Raises ``OSError`` if it cannot be asked."""
    if launch.hosting == "task":
        return Task.read(os.environ)
    hook = None
    if launch.group:
        hook = TerminationHook(
            launch.group,
            launch.hook,
            folder=launch.data_dir,
            process=launch.process,
            processes=launch.processes_per_instance,
        )
    return Instance.read(InstanceMetadata(launch.metadata_url), hook)


def _claim(
    ids: BrokerIds,
    candidates: Sequence[int],
    known: Sequence[int],
    wants_stop: Sequence[int],
    claim_seconds: int,
) -> int | None:
    """Return an id once one is free; ``None`` if the process has to stop first."""
    while not wants_stop:
        try:
            broker_id = ids.claim(candidates, known=known)
        except (ClientError, BotoCoreError) as error:
            logger.warning("the table of broker ids is unavailable: %s", error)
        else:
            if broker_id is not None:
                return broker_id
            logger.info("all %d broker ids are in use, waiting for one", len(candidates))
        time.sleep(min(RETRY_SECONDS, claim_seconds / RENEWALS_PER_CLAIM))
    return None


def _run(
    command: Sequence[str],
    ids: BrokerIds,
    broker_id: int,
    *,
    probe: Probe,
    place: Place,
    wants_stop: Sequence[int],
    claim_seconds: int,
) -> int:
    """Run the node and keep its id until it ends; return the exit status."""
    node = subprocess.Popen(command)
    renewal_seconds = claim_seconds / RENEWALS_PER_CLAIM
    renewed = time.monotonic()
    is_terminating = False
    notifier, health = Notifier(os.environ), Health.IS_SILENT
    while node.poll() is None and not wants_stop:
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(min(CHECK_SECONDS, renewal_seconds))
        before, health = health, probe.ask()
        if health is Health.IS_SILENT and before is not health and node.poll() is None:
            logger.error("the node does not answer; if that lasts, systemd starts it again")
        notifier.note(health)
        is_terminating = place.is_terminating()
        if is_terminating:
            logger.info("the instance is being terminated, stopping the node")
            break
        if time.monotonic() - renewed < renewal_seconds:
            continue
        try:
            ids.renew(broker_id)
            renewed = time.monotonic()
        except ClaimLost as error:
            logger.error("%s, stopping the node", error)
            notifier.stopping()
            _stop(node)
            return 1
        except (ClientError, BotoCoreError) as error:
            # The node's own lease decides whether it may continue.
            logger.warning("the claim of broker id %d was not renewed: %s", broker_id, error)
    was_running = node.poll() is None
    notifier.stopping()
    status = _stop(node)
    if is_terminating or not place.is_lasting:
        _release(ids, broker_id)
    if is_terminating:
        place.finish()
    return 0 if was_running and status == 0 else status or 1


def _stop(node: subprocess.Popen[bytes]) -> int:
    """Stop the node cleanly, and return its exit status."""
    node.terminate()
    try:
        return node.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        logger.error("the node did not stop, killed it")
        node.kill()
        return node.wait()


def _release(ids: BrokerIds, broker_id: int) -> None:
    try:
        ids.release(broker_id)
    except (ClaimLost, ClientError, BotoCoreError) as error:
        logger.warning("broker id %d was not released, it will expire: %s", broker_id, error)


def _parse(arguments: Sequence[str]) -> Launch:
    parser = argparse.ArgumentParser(prog="tidelog_launch", description="Run one node process.")
    parser.add_argument("--table", required=True, help="the table of broker ids")
    parser.add_argument(
        "--hosting", choices=("instance", "task"), default="instance", help="of EC2, or of ECS"
    )
    parser.add_argument(
        "--zone-number",
        type=int,
        default=0,
        help="1, 2 or 3: ids of that zone; 0: of any zone, where all topics are diskless (0)",
    )
    parser.add_argument("--processes-per-instance", type=int, required=True)
    parser.add_argument("--process", type=int, required=True, help="number of this process, from 0")
    parser.add_argument(
        "--client-access",
        choices=CLIENT_ACCESS,
        default="open",
        help="listeners for clients: without TLS, with TLS and logins, or both (open)",
    )
    parser.add_argument("--port-first", type=int, default=9092, help="port of process 0 (9092)")
    parser.add_argument(
        "--secure-port-first", type=int, default=9292, help="the same with TLS and logins (9292)"
    )
    parser.add_argument(
        "--inter-broker-port-first",
        type=int,
        default=9192,
        help="port of process 0 for other nodes, 0 for free ones (9192)",
    )
    parser.add_argument("--private-link-host", default="", help="the name of PrivateLink's clients")
    parser.add_argument("--private-link-port-first", type=int, default=9392, help="(9392)")
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--metadata-url", default=METADATA_URL)
    parser.add_argument("--claim-seconds", type=int, default=CLAIM_SECONDS)
    parser.add_argument(
        "--http-port-first",
        type=int,
        default=0,
        help="port of /readyz of process 0, 0 for none (0)",
    )
    parser.add_argument("--group", default="", help="the auto scaling group, to complete its hook")
    parser.add_argument("--hook", default="drain", help="the group's hook of termination (drain)")
    parser.add_argument("node_arguments", nargs="*", help="options of tidelog_node, after --")
    given = parser.parse_args(arguments)
    return Launch(
        table=given.table,
        hosting=given.hosting,
        zone_number=given.zone_number,
        processes_per_instance=given.processes_per_instance,
        process=given.process,
        client_access=given.client_access,
        port_first=given.port_first,
        secure_port_first=given.secure_port_first,
        inter_broker_port_first=given.inter_broker_port_first,
        private_link_host=given.private_link_host,
        private_link_port_first=given.private_link_port_first,
        data_dir=given.data_dir,
        metadata_url=given.metadata_url,
        claim_seconds=given.claim_seconds,
        http_port_first=given.http_port_first,
        group=given.group,
        hook=given.hook,
        node_arguments=given.node_arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
