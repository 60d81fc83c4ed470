"""Records from and to the shell, over a real node."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import subprocess
from pathlib import Path

import pytest
from tidelog import Producer
from tidelog_cli.failures import CommandFailed
from tidelog_cli.records.record_lines import JsonLines

from tests.support.command import COMMAND, called, environment, tidelog


def produce(topic: str, lines: bytes, bootstrap: str, *options: str) -> None:
    called("produce", topic, *options, bootstrap=bootstrap, given=lines)


def test_lines_of_stdin_come_back_as_they_were(bootstrap: str) -> None:
    """Empty lines are records too; the last line needs no end."""
    lines = "one\n\nzwei ä\nlast".encode()
    outcome = tidelog("produce", "lines", bootstrap=bootstrap, given=lines)
    assert "4 records written" in outcome.errors
    assert outcome.out == b""
    read = tidelog("consume", "lines", "--from-beginning", "-n", 4, bootstrap=bootstrap)
    assert read.out == lines + b"\n"


def test_keys_headers_partition_and_null_values(bootstrap: str) -> None:
    produce(
        "keyed",
        b"a\t1\nb\tNULL\n",
        bootstrap,
        *("--key-separator", r"\t", "--header", "h=x", "--header", "i=y"),
        *("--partition", "0", "--null-marker", "NULL", "--compression", "zstd"),
    )
    read = called("consume", "keyed", "--offset", 0, "-n", 2, "--json", bootstrap=bootstrap)
    records = [json.loads(line) for line in read.lines]
    assert [(r["key"], r["value"], r["offset"]) for r in records] == [("a", "1", 0), ("b", None, 1)]
    assert records[0]["headers"] == [{"name": "h", "value": "x"}, {"name": "i", "value": "y"}]


def test_file_of_many_lines_is_written_in_order(bootstrap: str, tmp_path: Path) -> None:
    file = tmp_path / "numbers"
    file.write_text("".join(f"{number}\n" for number in range(50_000)))
    written = called("produce", "numbers", file, "--json", bootstrap=bootstrap)
    assert written.document["records"] == 50_000
    read = called("consume", "numbers", "--from-beginning", "-n", 50_000, bootstrap=bootstrap)
    assert read.out == file.read_bytes()


def test_reading_starts_where_the_offset_says_and_ends_when_idle(bootstrap: str) -> None:
    produce("starts", b"0\n1\n2\n3\n4\n", bootstrap)

    def read(where: str) -> list[str]:
        outcome = called(
            "consume", "starts", "--offset", where, "--timeout", 0.5, "-f", "%o=%s ",
            bootstrap=bootstrap,
        )  # fmt: skip
        return outcome.out.decode().split()

    assert read("3") == ["3=3", "4=4"]
    assert read("-2") == ["3=3", "4=4"]
    assert read("@0") == ["0=0", "1=1", "2=2", "3=3", "4=4"]
    assert read("latest") == []
    outcome = called("consume", "starts", "--offset", 6, bootstrap=bootstrap, status=1)
    assert "offsets 0 to 5, not 6" in outcome.errors


def test_group_goes_on_behind_what_it_has_printed(bootstrap: str) -> None:
    produce("grouped", b"a\nb\nc\n", bootstrap)
    options = ("consume", "grouped", "--group", "readers", "--from-beginning")
    assert called(*options, "-n", 2, bootstrap=bootstrap).lines == ["a", "b"]
    assert called(*options, "--timeout", 2, bootstrap=bootstrap).lines == ["c"]


def test_consumer_ends_in_order_when_interrupted(bootstrap: str) -> None:
    """And has written everything it read by then."""
    produce("endless", b"a\nb\n", bootstrap)
    process = subprocess.Popen(
        [COMMAND, "consume", "endless", "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(bootstrap),
    )
    assert process.stdout is not None
    assert process.stdout.readline() + process.stdout.readline() == b"a\nb\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, b"tidelog: 2 records read from endless\n")


def test_reader_that_closes_the_pipe_ends_the_consumer_quietly(bootstrap: str) -> None:
    produce("piped", b"x" * 100_000 + b"\n", bootstrap)
    script = f"{COMMAND} consume piped --from-beginning | head -c 1"
    done = subprocess.run(
        ["sh", "-c", script],
        capture_output=True,
        env=environment(bootstrap),
        timeout=30,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"x", b"")


def test_line_that_cannot_be_written_is_named(bootstrap: str) -> None:
    outcome = called(
        "produce", "lines", "--key-separator", ":", bootstrap=bootstrap, given=b"a:1\nb\n", status=1
    )
    assert "line 2 has no ':'" in outcome.errors


def test_record_that_is_too_large_says_which_limit_to_raise(bootstrap: str, tmp_path: Path) -> None:
    file = tmp_path / "huge"
    file.write_bytes(b"ok\n" + b"x" * 2_000_000 + b"\n")
    outcome = called("produce", "huge", file, bootstrap=bootstrap, status=1)
    assert "line 2 was not written: its 2000000 bytes are more than --max-message-bytes" in (
        outcome.errors
    )
    allowing = ("--max-message-bytes", 3_000_000)
    outcome = called("produce", "huge", file, *allowing, bootstrap=bootstrap, status=1)
    assert "`tidelog topic alter huge --config max.message.bytes=N` raises it" in outcome.errors
    settings = ("--config", "max.message.bytes=3000000", "--config", "segment.bytes=9000000")
    called("topic", "alter", "huge", *settings, bootstrap=bootstrap)
    called("produce", "huge", file, *allowing, bootstrap=bootstrap)


def test_new_topic_is_announced_once(bootstrap: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\nb\n")
    first = called("produce", "announced", file, bootstrap=bootstrap)
    assert first.errors.splitlines() == [
        "tidelog: topic announced created",
        "tidelog: 2 records written to announced",
    ]
    second = called("produce", "announced", file, bootstrap=bootstrap)
    assert second.errors == "tidelog: 2 records written to announced\n"
    outcome = called("consume", "anounced", bootstrap=bootstrap, status=1)
    assert outcome.errors.endswith("there is no topic 'anounced'; did you mean 'announced'?\n")


def test_json_of_consume_is_what_produce_reads(bootstrap: str) -> None:
    """Keys, values, headers, times and partitions: text, bytes, empty and null."""
    called("topic", "create", "source", "--partitions", 3, bootstrap=bootstrap)
    called("topic", "create", "copy", "--partitions", 3, bootstrap=bootstrap)

    async def write() -> None:
        contents = (None, b"", b"text", "zwei ä\n".encode(), b"\xff\x00\xfe")
        async with Producer(bootstrap) as producer:
            for number, (key, value) in enumerate(itertools.product(contents, contents)):
                await producer.send(
                    "source",
                    value,
                    key=key,
                    headers=[("h", value), ("h", key), ("ä", b"")][: number % 4],
                    partition=number % 3,
                    timestamp_ms=1_700_000_000_000 + number,
                )

    asyncio.run(write())

    def read(topic: str) -> bytes:
        return called(
            "consume", topic, "--from-beginning", "-n", 25, "--json", bootstrap=bootstrap
        ).out

    def facts(lines: bytes) -> list[dict[str, object]]:
        records = [{**json.loads(line), "topic": ""} for line in lines.splitlines()]
        return sorted(records, key=lambda record: (record["partition"], record["offset"]))

    source = read("source")
    produce("copy", source, bootstrap, "--format", "json")
    assert facts(read("copy")) == facts(source)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"hello", "Expecting value"),
        (b"[]", "not an object"),
        (b'{"val": "x"}', "'val'"),
        (b'{"value": 1}', "'value'"),
        (b'{"value_base64": "?"}', "base64"),
        (b'{"value": "a", "value_base64": "YQ=="}', "'value'"),
        (b'{"partition": -1}', "'partition'"),
        (b'{"timestamp_ms": true}', "'timestamp_ms'"),
        (b'{"headers": {"a": "b"}}', "'headers'"),
        (b"[" * 100_000, "line 2"),
    ],
)
def test_line_that_is_no_record_in_json_is_named(line: bytes, said: str) -> None:
    with pytest.raises(CommandFailed, match="line 2 ") as failure:
        JsonLines((), None).parse(line, 2)
    assert said in str(failure.value)


def test_producer_ends_though_more_may_come(bootstrap: str) -> None:
    """A record is written as soon as its line is there; Ctrl-C and errors need no more input."""
    called("topic", "create", "typed", bootstrap=bootstrap)
    for options, status in ((), 130), (("--partition", "9"), 1):
        process = subprocess.Popen(
            [COMMAND, "produce", "typed", *options],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(bootstrap),
            # A suite that a shell runs in the background passes on that SIGINT is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )
        with process:
            assert process.stdin is not None
            assert process.stderr is not None
            process.stdin.write(b"typed\n")
            process.stdin.flush()
            if not options:
                read = called("consume", "typed", "-n", 1, "--from-beginning", "--timeout", 20,
                               bootstrap=bootstrap)  # fmt: skip
                assert read.out == b"typed\n"
                process.send_signal(signal.SIGINT)
            assert process.wait(30) == status
            errors = process.stderr.read().decode()
            assert "Fatal" not in errors
            assert errors.count("\n") == (status == 1)


def test_unknown_topic_partition_and_node_are_named(bootstrap: str) -> None:
    outcome = called("consume", "nowhere", bootstrap=bootstrap, status=1)
    assert "there is no topic 'nowhere'" in outcome.errors
    produce("narrow", b"a\n", bootstrap)
    outcome = called("consume", "narrow", "--partition", 9, bootstrap=bootstrap, status=1)
    assert "partitions 0 to 0, not 9" in outcome.errors
