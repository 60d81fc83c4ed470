"""One broker under comparison, and one blocking connection to it."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any

from tidelog_core.api_keys import ApiKey
from tidelog_core.message_reader import read_from
from tidelog_core.message_schemas import load_response_schema
from tidelog_core.wire_messages import write_message

from tests.support.kafka_messages import SERVED_KEYS, plain, request

TIMEOUT_SECONDS = 60.0
CLOSED = "connection closed"
NO_ANSWER = "no answer"
NO_TOPIC = uuid.UUID(int=0)


class Peer:
    """A broker by its port; the code is the same for both brokers."""

    def __init__(
        self,
        name: str,
        port: int,
        *,
        open_as_broker: Callable[[], socket.socket] | None = None,
        address: str = "",
        client_id: bytes = b"test",
    ) -> None:
        """``open_as_broker`` connects as another broker does; ``None``: as any client.

        ``address`` is the client's own.
        """
        self._address = address
        self._client_id = client_id
        self.name = name
        self._open_as_broker = open_as_broker
        self.port = port
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.timeout = TIMEOUT_SECONDS  # of one answer
        self._socket: socket.socket | None = None
        self._correlation_id = 0

    def close(self) -> None:
        """Close the connection; the next request makes a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @property
    def is_closed(self) -> bool:
        """Whether there is no connection now."""
        return self._socket is None

    def as_broker(self) -> Peer:
        """Return the same broker, asked by another one."""
        if self._open_as_broker is None:
            return self
        asked = Peer(self.name, self.port)
        asked._socket = self._open_as_broker()
        return asked

    # -- bytes --

    def exchange(self, data: bytes, *, timeout: float = TIMEOUT_SECONDS) -> bytes | str:
        """Send bytes as they are; return the next frame without its size, ``CLOSED`` or ``NO_ANSWER``."""
        self.send(data)
        return self.receive(timeout=timeout)

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        if self._socket is None:
            self._socket = socket.create_connection(
                ("127.0.0.1", self.port), TIMEOUT_SECONDS, (self._address, 0)
            )
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(data)

    def receive(self, *, timeout: float = TIMEOUT_SECONDS) -> bytes | str:
        """Return the next frame without its size, or ``CLOSED``, or ``NO_ANSWER``."""
        assert self._socket is not None
        self._socket.settimeout(timeout)
        try:
            size = self._exactly(4)
            data = None if size is None else self._exactly(struct.unpack(">i", size)[0])
        except TimeoutError:
            self.close()
            return NO_ANSWER
        if data is None:
            self.close()
            return CLOSED
        return data

    def frame(
        self,
        api_key: int,
        version: int,
        body: bytes,
        *,
        is_flexible: bool,
        client: bytes | None = None,
    ) -> bytes:
        """Return a request with its size and a new correlation id."""
        self._correlation_id += 1
        client = self._client_id if client is None else client
        head = struct.pack(">hhih", api_key, version, self._correlation_id, len(client)) + client
        data = head + (b"\x00" if is_flexible else b"") + body
        return struct.pack(">i", len(data)) + data

    def _exactly(self, size: int) -> bytes | None:
        assert self._socket is not None
        data = b""
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except ConnectionResetError:
                return None
            if not part:
                return None
            data += part
        return data

    # -- messages --

    def call(self, api: str, version: int, **fields: object) -> Any:
        """Send a request and return the response as plain values, or ``CLOSED``."""
        entity = request(api, version, fields)
        body = write_message(type(entity), entity)
        return self.call_raw(api, version, body)

    def call_raw(self, api: str, version: int, body: bytes) -> Any:
        """Send a request whose body is given as bytes; return as ``call`` does."""
        api_key = SERVED_KEYS[api]
        schema: Any = load_response_schema(api_key, version)
        frame = self.frame(api_key, version, body, is_flexible=schema.__flexible__)
        answer = self.exchange(frame, timeout=self.timeout)
        if isinstance(answer, str):
            return answer
        assert struct.unpack_from(">i", answer) == (self._correlation_id,)
        position = 4 + (schema.__flexible__ and api_key != ApiKey.API_VERSIONS)
        # kio's own reader takes no -1 for a time, which answers about tokens have.
        response, end = read_from(schema, answer, position)
        assert end == len(answer), "the answer has more bytes than its schema"
        return plain(response)

    # -- steps that most cases share --

    def create_topic(self, name: str, *, partitions: int = 1, **configs: str) -> None:
        """Create a topic and wait until it has leaders; ``_`` is ``.`` in setting names."""
        topic = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": [
                {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
            ],
        }
        answer = self.call("create_topics", 7, topics=[topic], timeout=10_000)
        assert answer["topics"][0]["error_code"] == "none", answer
        self.await_topic(name, partitions=partitions)

    def await_topic(self, name: str, *, partitions: int = 1) -> None:
        """Wait until every partition of the topic has a leader that serves it."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            answer = self.call("metadata", 12, topics=[{"name": name}])
            topic = answer["topics"][0]
            leaders = [p for p in topic["partitions"] if p["leader_id"] >= 0]
            if topic["error_code"] == "none" and len(leaders) >= partitions:
                self.topic_ids[name] = topic["topic_id"]
                if all(self.end_offset(name, index) is not None for index in range(partitions)):
                    return
            time.sleep(0.02)
        raise TimeoutError(f"{self.name} has no leaders for {name}")

    def await_gone(self, name: str) -> None:
        """Wait until the topic is not known any more."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            answer = self.call(
                "metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False
            )
            if answer["topics"][0]["error_code"] == "unknown_topic_or_partition":
                return
            time.sleep(0.02)
        raise TimeoutError(f"{self.name} still has {name}")

    def init_producer_id(self) -> Any:
        """Return InitProducerId's answer, once the broker is ready to give one."""
        return self.until(
            lambda: self.call("init_producer_id", 4, transactional_id=None),
            lambda answer: answer["error_code"] != "coordinator_load_in_progress",
        )

    def await_coordinator(self, key: str, *, key_type: int = 0) -> Any:
        """Return FindCoordinator's answer; a broker's first makes the topic, and says so."""
        found = self.until(
            lambda: self.call("find_coordinator", 3, key=key, key_type=key_type),
            lambda answer: answer["error_code"] == "none",
        )
        if key_type == 0:
            # A broker is named before it has loaded the groups or learned that it coordinates them.
            self.until(
                lambda: self.call("describe_groups", 5, groups=[key])["groups"][0]["error_code"],
                lambda code: code not in ("not_coordinator", "coordinator_load_in_progress"),
            )
        return found

    def until(self, ask: Callable[[], Any], is_enough: Callable[[Any], bool]) -> Any:
        """Ask until an answer is enough, and return it. Raises ``TimeoutError`` with the last one."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not is_enough(answer := ask()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} still answers {answer!r}")
            time.sleep(0.05)
        return answer

    def offset(self, topic: str, timestamp: int, *, partition: int = 0, version: int = 7) -> Any:
        """Return ListOffsets' answer on one partition."""
        wanted = {"partition_index": partition, "timestamp": timestamp}
        if version >= 4:
            wanted["current_leader_epoch"] = -1
        answer = self.call(
            "list_offsets",
            version,
            replica_id=-1,
            topics=[{"name": topic, "partitions": [wanted]}],
        )
        return answer if isinstance(answer, str) else answer["topics"][0]["partitions"][0]

    def end_offset(self, topic: str, partition: int = 0) -> int | None:
        """Return the offset after the last record, or ``None`` if the broker does not say."""
        found = self.offset(topic, -1, partition=partition)
        return int(found["offset"]) if found["error_code"] == "none" else None

    def produce(
        self,
        topic: str,
        records: bytes | None,
        *,
        version: int = 9,
        partition: int = 0,
        acks: int = -1,
        transactional_id: str | None = None,
    ) -> Any:
        """Produce to one partition; return its answer, or ``CLOSED``."""
        answer = self.call(
            "produce",
            version,
            transactional_id=transactional_id,
            acks=acks,
            timeout=5000,
            topic_data=[
                {
                    **self._named(topic, by_id=version >= 13),
                    "partition_data": [{"index": partition, "records": records}],
                }
            ],
        )
        return (
            answer if isinstance(answer, str) else answer["responses"][0]["partition_responses"][0]
        )

    def send_produce(self, topic: str, records: bytes, *, acks: int, version: int = 9) -> None:
        """Send a Produce request, and wait for no answer."""
        fields = {
            "transactional_id": None,
            "acks": acks,
            "timeout": 5000,
            "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": records}]}],
        }
        entity = request("produce", version, fields)
        body = write_message(type(entity), entity)
        self.send(self.frame(SERVED_KEYS["produce"], version, body, is_flexible=version >= 9))

    def fetch(
        self,
        topic: str | uuid.UUID,
        offset: int,
        *,
        version: int = 12,
        partition: int = 0,
        leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        partition_max_bytes: int = 1_048_576,
        **fields: object,
    ) -> Any:
        """Fetch one partition; return the whole answer."""
        wanted = {
            "partition": partition,
            "fetch_offset": offset,
            "partition_max_bytes": partition_max_bytes,
            "log_start_offset": -1,
            "current_leader_epoch": leader_epoch,
            "last_fetched_epoch": last_fetched_epoch,
        }
        if version < 12:
            del wanted["last_fetched_epoch"]
        if version < 9:
            del wanted["current_leader_epoch"]
        if version < 5:
            del wanted["log_start_offset"]
        named = (
            {"topic_id": topic}
            if isinstance(topic, uuid.UUID)
            else self._named(topic, by_id=version >= 13, name_field="topic")
        )
        given = {"max_wait": 0, "min_bytes": 1, "max_bytes": 2**31 - 1, **fields}
        if version < 15:
            given.setdefault("replica_id", -1)
        if version >= 7:
            given.setdefault("session_epoch", -1)
        return self.call("fetch", version, topics=[{**named, "partitions": [wanted]}], **given)

    def _named(self, topic: str, *, by_id: bool, name_field: str = "name") -> dict[str, object]:
        if not by_id:
            return {name_field: topic}
        return {"topic_id": self.topic_ids.get(topic, NO_TOPIC)}
