"""Batches to and from Apache Kafka's own Java classes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tidelog_core.records.batch import (
    CompressionType,
    Record,
    build_batch,
    decode_records,
    parse_header,
    validate_produced,
    validate_records,
)

from tests.core.records.samples import CODECS, sample_records
from tools import kafka_java

JAVA, CLASS_PATH = shutil.which("java"), kafka_java.class_path()
pytestmark = pytest.mark.skipif(
    JAVA is None or CLASS_PATH is None, reason="needs java and Kafka's jars (make tools)"
)


def _records() -> list[Record]:
    records = sample_records(3000)
    records[7] = records[7]._replace(value=b"several blocks " * 30_000)
    records[8] = records[8]._replace(timestamp_ms=0)
    return records


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our batch of each codec, read by Java and written again in every codec."""
    directory = tmp_path_factory.mktemp("batches")
    for codec in CODECS:
        path = directory / f"{codec.name.lower()}.in"
        path.write_bytes(build_batch(_records(), compression=codec))
    source = Path(__file__).with_name("JavaRecords.java")
    names = [codec.name.lower() for codec in CODECS]
    command = [JAVA, "-Xshare:auto", "-cp", CLASS_PATH, str(source), str(directory), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return directory


@pytest.mark.parametrize("ours", CODECS)
@pytest.mark.parametrize("theirs", CODECS)
def test_java_reads_what_we_build_and_we_read_what_java_builds(
    written: Path, ours: CompressionType, theirs: CompressionType
) -> None:
    batch = (written / f"{ours.name.lower()}.{theirs.name.lower()}.out").read_bytes()
    header = parse_header(batch)
    assert header.compression is theirs
    validate_produced(header, batch, 0)
    validate_records(batch, 0, header, requires_keys=False)
    assert decode_records(batch) == _records()


def test_uncompressed_bytes_are_the_same(written: Path) -> None:
    assert (written / "none.none.out").read_bytes() == build_batch(_records())
