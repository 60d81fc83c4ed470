"""``tidelog repair`` on the data directory of a real node."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from tests.support.batches import batch_of
from tests.support.command import called
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fetched(node: NodeProcess, offset: int) -> ErrorCode:
    with WireClient(node.port) as client:
        code: ErrorCode = client.fetch("t", offset).error_code
        return code


def produced(node: NodeProcess) -> int:
    """Return the offset that a batch of ten records was given, -1 where it was refused."""
    with WireClient(node.port) as client:
        answer = client.produce("t", batch_of(*[b"x" * 100] * 10))
        return int(answer.base_offset) if answer.error_code is ErrorCode.none else -1


def test_a_log_without_one_of_its_files_is_served_again(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node")
    with node:
        admin = AdminClient({"bootstrap.servers": node.address})
        settings = {"segment.bytes": "5000", "remote.storage.enable": "false"}
        admin.create_topics([NewTopic("t", 1, 1, config=settings)])["t"].result(60)
        eventually(lambda: produced(node) == 0, "the topic is there")
        for _ in range(20):
            last = produced(node)
        refused = called("repair", "--partition", "t-0", "--data-dir", node.data_dir, status=1)
        assert "a node uses" in refused.errors
    gone, following = sorted((node.data_dir / "t-0").glob("*.log"))[1:3]
    gone.unlink()
    with node:
        assert fetched(node, 0) is ErrorCode.kafka_storage_error
        eventually(lambda: "tidelog repair --partition t-0" in node.log, "a way out is offered")
        node.wait_logged(f"{gone} is missing")
    before = files_of(node.data_dir)
    options = ("--partition", "t-0", "--data-dir", node.data_dir)
    dry = called("repair", *options, "--dry-run")
    assert gone.name in dry.out.decode()
    assert f"[{int(gone.stem)}, {int(following.stem)})" in dry.out.decode()
    assert files_of(node.data_dir) == before
    document = called("repair", *options, "--json").document
    assert document["lost"] == [[int(gone.stem), int(following.stem)]]
    assert "nothing is wrong" in called("repair", *options).errors
    with node:
        for offset in (0, int(gone.stem), int(following.stem), last):
            assert fetched(node, offset) is ErrorCode.none
        assert produced(node) == last + 10


def test_what_is_no_log_of_a_node_is_told(tmp_path: Path) -> None:
    assert (
        "no log of t-0"
        in called("repair", "--partition", "t-0", "--data-dir", tmp_path, status=2).errors
    )
    (tmp_path / "t-0").mkdir()
    assert (
        "not the data directory of a node"
        in called("repair", "--partition", "t-0", "--data-dir", tmp_path, status=2).errors
    )
    assert (
        "is not a partition"
        in called("repair", "--partition", "t", "--data-dir", tmp_path, status=2).errors
    )
