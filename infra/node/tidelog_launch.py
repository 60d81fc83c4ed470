"""Run one node process on a machine of the cluster: claim a broker id, start, renew, drain.

Theory of operation. Broker ids of a zone are ``100 * zone + 1`` and up, as many as the zone
has processes, so that a replacement machine gets the id of the lost one, and with it the
partitions. An id is claimed with a conditional write to a table:

    broker_id   the id
    owner       «<instance id>/<process>»
    expires_at  Unix time in seconds; also the table's TTL

and renewed while the node runs. A claim that is not renewed expires, and another process
may take the id. This table does not prevent two processes with one id (it compares the
clocks of two machines, and either may be wrong): the node's own lease in the metadata
table does, without clocks. The table only assigns ids quickly, each once.

A process restarted on the same machine gets its own id again, and each id has its own data
directory, so a disk is never used by another broker.

SIGTERM, or the auto scaling group's termination of the instance, stops the node cleanly:
it hands its leaderships over. A terminated instance releases its ids.

While the node answers, systemd hears so; if it hangs, systemd kills it and starts it again
(``tidelog_health``).

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
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from tidelog_health import Health, Notifier, Probe
from tidelog_instance import METADATA_URL, InstanceMetadata

logger = logging.getLogger("tidelog_launch")

IDS_PER_ZONE_MAX = 100
OPEN, SECURE = "PLAINTEXT", "SASL_SSL"  # listeners for clients, by the names of their protocols
# The listener for clients that come through an endpoint service (PrivateLink): one name, and a
# port for each broker, by its id. By health checks the load balancer finds the broker's machine.
PRIVATE_LINK = "PRIVATELINK"
PRIVATE_LINK_NODES_MAX = 4  # of a zone, as in infra/private_link.yaml
CLIENT_ACCESS = {"open": (OPEN,), "both": (OPEN, SECURE), "secure": (SECURE,)}
# Read from a tag that the group gives its machines, because a tag can change without a
# replacement of the machines.
INSTANCE_COUNT = "tags/instance/tidelog-instances-per-zone"
CLAIM_SECONDS = 120
RENEWALS_PER_CLAIM = 4
RETRY_SECONDS = 5.0
CHECK_SECONDS = 2.0  # between two checks of the node and of the instance's state
STOP_SECONDS_MAX = 75.0  # of the 90 that systemd and the lifecycle hook allow


class ClaimLost(Exception):
    """The claim expired, and another process has the id."""


class BrokerIds:
    """The table of broker ids in use, for one process."""

    def __init__(self, client: Any, table: str, *, owner: str, claim_seconds: int) -> None:
        """``client`` is a DynamoDB client of boto3."""
        self._client = client
        self._table = table
        self._owner = owner
        self._claim_seconds = claim_seconds

    def claim(self, candidates: Sequence[int]) -> int | None:
        """Return the first free id, ``None`` if all are in use.

        An id that this process already has comes first.
        """
        owned = [broker_id for broker_id in candidates if self._owner_of(broker_id) == self._owner]
        for broker_id in [*owned, *candidates]:
            try:
                self.renew(broker_id, also_if_lapsed=True)
            except ClaimLost:
                continue
            return broker_id
        return None

    def renew(self, broker_id: int, *, also_if_lapsed: bool = False) -> None:
        """Keep the id for another ``claim_seconds``. Raises ``ClaimLost``."""
        now = int(time.time())
        condition = "#owner = :me"
        values = {":me": {"S": self._owner}, ":until": {"N": str(now + self._claim_seconds)}}
        if also_if_lapsed:
            condition += " OR attribute_not_exists(#owner) OR expires_at < :now"
            values[":now"] = {"N": str(now)}
        self._write(
            self._client.update_item,
            broker_id,
            UpdateExpression="SET #owner = :me, expires_at = :until",
            ConditionExpression=condition,
            ExpressionAttributeNames={"#owner": "owner"},
            ExpressionAttributeValues=values,
        )

    def release(self, broker_id: int) -> None:
        """Release the id. Raises ``ClaimLost``."""
        self._write(
            self._client.delete_item,
            broker_id,
            ConditionExpression="#owner = :me",
            ExpressionAttributeNames={"#owner": "owner"},
            ExpressionAttributeValues={":me": {"S": self._owner}},
        )

    def _owner_of(self, broker_id: int) -> str | None:
        found = self._client.get_item(
            TableName=self._table, Key=self._key(broker_id), ConsistentRead=True
        )
        owner: str | None = found.get("Item", {}).get("owner", {}).get("S")
        return owner

    def _write(self, call: Any, broker_id: int, **request: Any) -> None:
        try:
            call(TableName=self._table, Key=self._key(broker_id), **request)
        except ClientError as error:
            if error.response["Error"]["Code"] == "ConditionalCheckFailedException":
                raise ClaimLost(f"broker id {broker_id} is not {self._owner}'s") from None
            raise

    @staticmethod
    def _key(broker_id: int) -> dict[str, dict[str, str]]:
        return {"broker_id": {"N": str(broker_id)}}


@dataclass(frozen=True, slots=True)
class Launch:
    """The command line's options."""

    table: str
    zone_number: int
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
    node_arguments: Sequence[str]

    def candidates(self, instance_count: int) -> list[int]:
        """Return the ids of a zone with so many machines; ids with logs here come first."""
        first = self.zone_number * IDS_PER_ZONE_MAX + 1
        count = instance_count * self.processes_per_instance
        if not 1 <= count < IDS_PER_ZONE_MAX:
            raise ValueError(f"a zone has from 1 to {IDS_PER_ZONE_MAX - 1} nodes, not {count}")
        ids = range(first, first + count)
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
        return [
            *(sys.executable, "-m", "tidelog_node", "--broker-id", str(broker_id)),
            *("--set", f"listener.security.protocol.map={protocols}"),
            *("--set", f"listeners={listeners}"),
            *("--set", f"advertised.listeners={advertised}"),
            *("--inter-broker-port", str(inter_broker_port)),
            *("--data-dir", str(self.logs_of(broker_id)), "--rack", zone),
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
    metadata = InstanceMetadata(launch.metadata_url)
    ids = BrokerIds(
        boto3.client("dynamodb", config=Config(connect_timeout=3, read_timeout=5)),
        launch.table,
        owner=f"{metadata.get('instance-id')}/{launch.process}",
        claim_seconds=launch.claim_seconds,
    )
    candidates = launch.candidates(int(metadata.get(INSTANCE_COUNT)))
    broker_id = _claim(ids, candidates, wants_stop, launch.claim_seconds)
    if broker_id is None:
        return 0
    address = metadata.get("local-ipv4")
    command = launch.command(
        broker_id,
        address=address,
        host=metadata.get("local-hostname"),
        zone=metadata.get("placement/availability-zone"),
    )
    logger.info("broker id %d taken", broker_id)
    return _run(
        command,
        ids,
        broker_id,
        probe=launch.probe(address),
        metadata=metadata,
        wants_stop=wants_stop,
        claim_seconds=launch.claim_seconds,
    )


def _claim(
    ids: BrokerIds, candidates: Sequence[int], wants_stop: Sequence[int], claim_seconds: int
) -> int | None:
    """Return an id once one is free; ``None`` if the process has to stop first."""
    while not wants_stop:
        try:
            broker_id = ids.claim(candidates)
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
    metadata: InstanceMetadata,
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
        is_terminating = metadata.is_terminating()
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
    if is_terminating:
        _release(ids, broker_id)
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
    parser.add_argument("--zone-number", type=int, required=True, help="1, 2 or 3")
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
    parser.add_argument("node_arguments", nargs="*", help="options of tidelog_node, after --")
    given = parser.parse_args(arguments)
    return Launch(
        table=given.table,
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
        node_arguments=given.node_arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
