"""The programs of ``docs/arrow.md`` are run, with a node."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tidelog import Admin, Producer

from tests.support.node_process import NodeProcess
from tools.places import ROOT
from tools.ports import free_port

PAGE = ROOT / "docs" / "arrow.md"


def test_the_programs_of_the_page_send_and_read(tmp_path: Path) -> None:
    scan, poll, decode, send = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    port = free_port()
    with NodeProcess(tmp_path / "node", arguments=("--registry-port", str(port))) as node:
        with Admin(node.address).sync() as admin:
            admin.create_topic("orders", partition_count=1)

        def printed(program: str) -> list[str]:
            program = program.replace("localhost:9092", node.address)
            program = program.replace("localhost:8081", f"localhost:{port}")
            ended = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, check=False
            )
            assert ended.stderr == ""
            return ended.stdout.splitlines()

        schema = '{"type":"record","name":"P","fields":[{"name":"total","type":"double"}]}'
        with SchemaRegistryClient({"url": f"http://localhost:{port}"}) as registry:
            value = AvroSerializer(registry, schema)(
                {"total": 1.5}, SerializationContext("payments", MessageField.VALUE)
            )
        with Producer(node.address).sync() as producer:
            producer.send("payments", value).result()
        assert printed(decode) == ["[1.5]"]
        assert printed(send) == ["2 rows sent"]
        columns = "'key', 'value', 'topic', 'partition', 'offset', 'timestamp', 'timestampType'"
        assert printed(scan) == [f"2 rows of [{columns}]", "[(0, 1)] 2 2"]
        # The last poll waits for as long as the page says.
        assert printed(
            poll.replace("timeout_ms=5_000", "timeout_ms=60_000 if first else 100")
            .replace("        while batches", "        first = True\n        while batches")
            .replace(
                "            for batch in batches:",
                "            first = False\n            for batch in batches:",
            )
        ) == ["2 records from 0"]
