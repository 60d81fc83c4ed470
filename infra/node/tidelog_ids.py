"""The table of broker ids in use: gives each process an id, each id to one process at a time.

    broker_id   the id
    owner       «<instance or task id>/<process>»
    expires_at  Unix time in seconds; also the table's TTL

An id is claimed with a conditional write, and renewed while the node runs. A claim that is not
renewed expires, and another process may take the id. This table does not prevent two processes with
one id (it compares the clocks of two machines, and either may be wrong): the node's own lease in
the metadata table does, without clocks. The table only assigns ids quickly, each once.

The lowest free id is taken. So ids stay few however often nodes come and go, and what a node has
left behind under an id (its registration, replicas of the cluster's own topics) is the next one's.
A chain of a diskless topic has a random part in its name beside the id: nobody continues it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from botocore.exceptions import ClientError

IDS_PER_ZONE_MAX = 100
# Of a cluster whose nodes hold nothing: one range for all zones, above those of zones.
SHARED_IDS = range(1001, 2000)


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

    def claim(self, candidates: Sequence[int], *, known: Sequence[int] | None = None) -> int | None:
        """Return the first free id, ``None`` if all are in use.

        An id that this process already has comes first. It is one of ``known``, if they are given.
        """
        asked = candidates if known is None else known
        owned = [broker_id for broker_id in asked if self._owner_of(broker_id) == self._owner]
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
