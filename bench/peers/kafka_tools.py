"""Measures the same servers with Apache Kafka's performance tools, as a cross-check."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping

from bench.peers import topics
from bench.peers.arena import Arena
from bench.peers.figures import Case
from bench.peers.peer import Peer
from bench.peers.throughput import measured
from tools import kafka_broker

WORKLOAD = "Kafka's tools"
_RECORD_SIZE_BYTES = 1024
_RECORD_COUNT = 200_000
_LATENCY_RECORD_COUNT = 5_000
_SECONDS_MAX = 60.0
_MIB = 1 << 20
_PACKAGE = "org.apache.kafka.tools"


def cases() -> list[Case]:
    """Return a cell for producing and consuming, and one for single records."""
    return [
        Case(WORKLOAD, "ProducerPerformance and ConsumerPerformance", _throughput, repeats_max=2),
        Case(WORKLOAD, "EndToEndLatency", _latency, repeats_max=2),
    ]


def _throughput(arena: Arena, peer: Peer) -> Mapping[str, float]:
    node = arena.node(peer)
    size_bytes = _RECORD_COUNT * _RECORD_SIZE_BYTES
    with topics.fresh_topic(node, peer) as topic:
        produce = (
            f"--topic {topic} --num-records {_RECORD_COUNT} --record-size {_RECORD_SIZE_BYTES}"
            f" --throughput -1 --producer-props bootstrap.servers={node.bootstrap} acks=1"
        )
        consume = (
            f"--bootstrap-server {node.bootstrap} --topic {topic} --messages {_RECORD_COUNT}"
            " --hide-header"
        )
        outputs: list[str] = []
        figures = measured(
            "produce",
            node,
            size_bytes,
            lambda: outputs.append(_run("ProducerPerformance", produce)),
        )
        figures |= measured(
            "fetch", node, size_bytes, lambda: outputs.append(_run("ConsumerPerformance", consume))
        )
    produced, fetched = outputs
    # By the tools' own clocks, in MiB: ours include the start of their virtual machines.
    speeds = re.findall(r"\(([\d.]+) MB/sec\)", produced)
    figures["produce_mb_per_s"] = float(speeds[-1]) * _MIB / 1e6
    # start, end, MB, MB/s, records, records/s, rebalance ms, fetch ms, MB/s while it fetched, ...
    fields = fetched.strip().split(", ")
    if int(fields[4]) < _RECORD_COUNT:  # the tool gives up without an exit code
        raise RuntimeError(f"ConsumerPerformance has seen {fields[4]} of {_RECORD_COUNT} records")
    figures["fetch_mb_per_s"] = float(fields[8]) * _MIB / 1e6
    return figures


def _latency(arena: Arena, peer: Peer) -> Mapping[str, float]:
    node = arena.node(peer)
    with arena.stopped_except(peer), topics.fresh_topic(node, peer) as topic:
        arguments = f"{node.bootstrap} {topic} {_LATENCY_RECORD_COUNT} 1 {_RECORD_SIZE_BYTES}"
        output = _run("EndToEndLatency", arguments)
    [average] = re.findall(r"Avg latency: ([\d.]+) ms", output)
    [(p50, p99, p999)] = re.findall(r"50th = (\d+), 99th = (\d+), 99\.9th = (\d+)", output)
    # The tool rounds percentiles down to whole milliseconds.
    return {
        "average_ms": float(average),
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "p99.9_ms": float(p999),
    }


def _run(tool: str, arguments: str) -> str:
    try:
        return kafka_broker.run_tool(f"{_PACKAGE}.{tool}", *arguments.split(), timeout=_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{tool} took more than {_SECONDS_MAX:.0f} s") from None
    except subprocess.CalledProcessError as error:
        words = str(error.stderr).strip().splitlines()[-1:]
        raise RuntimeError(f"{tool} ended with {error.returncode}: {words}") from None
