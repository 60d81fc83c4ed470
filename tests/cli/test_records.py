"""Records from and to the shell, over a real node."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

from tests.support.command import COMMAND, called, environment, tidelog


def produce(topic: str, lines: bytes, bootstrap: str, *options: str) -> None:
    tidelog("produce", topic, *options, bootstrap=bootstrap, given=lines)


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
    read = tidelog("consume", "keyed", "--offset", 0, "-n", 2, "--json", bootstrap=bootstrap)
    records = [json.loads(line) for line in read.lines]
    assert [(r["key"], r["value"], r["offset"]) for r in records] == [("a", "1", 0), ("b", None, 1)]
    assert records[0]["headers"] == [{"name": "h", "value": "x"}, {"name": "i", "value": "y"}]


def test_file_of_many_lines_is_written_in_order(bootstrap: str, tmp_path: Path) -> None:
    file = tmp_path / "numbers"
    file.write_text("".join(f"{number}\n" for number in range(50_000)))
    written = tidelog("produce", "numbers", file, "--json", bootstrap=bootstrap)
    assert written.document["records"] == 50_000
    read = tidelog("consume", "numbers", "--from-beginning", "-n", 50_000, bootstrap=bootstrap)
    assert read.out == file.read_bytes()


def test_reading_starts_where_the_offset_says_and_ends_when_idle(bootstrap: str) -> None:
    produce("starts", b"0\n1\n2\n3\n4\n", bootstrap)

    def read(where: str) -> list[str]:
        outcome = tidelog(
            "consume", "starts", "--offset", where, "--timeout", 0.5, "-f", "%o=%s ",
            bootstrap=bootstrap,
        )  # fmt: skip
        return outcome.out.decode().split()

    assert read("3") == ["3=3", "4=4"]
    assert read("-2") == ["3=3", "4=4"]
    assert read("@0") == ["0=0", "1=1", "2=2", "3=3", "4=4"]
    assert read("latest") == []
    outcome = tidelog("consume", "starts", "--offset", 6, bootstrap=bootstrap, status=1)
    assert "offsets 0 to 5, not 6" in outcome.errors


def test_group_goes_on_behind_what_it_has_printed(bootstrap: str) -> None:
    produce("grouped", b"a\nb\nc\n", bootstrap)
    options = ("consume", "grouped", "--group", "readers", "--from-beginning")
    assert tidelog(*options, "-n", 2, bootstrap=bootstrap).lines == ["a", "b"]
    assert tidelog(*options, "--timeout", 2, bootstrap=bootstrap).lines == ["c"]


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
    outcome = tidelog(
        "produce", "lines", "--key-separator", ":", bootstrap=bootstrap, given=b"a:1\nb\n", status=1
    )
    assert "line 2 has no ':'" in outcome.errors
    huge = b"ok\n" + b"x" * 2_000_000 + b"\n"
    outcome = tidelog("produce", "lines", bootstrap=bootstrap, given=huge, status=1)
    assert "line 2" in outcome.errors


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
                read = tidelog("consume", "typed", "-n", 1, "--from-beginning", "--timeout", 20,
                               bootstrap=bootstrap)  # fmt: skip
                assert read.out == b"typed\n"
                process.send_signal(signal.SIGINT)
            assert process.wait(30) == status
            errors = process.stderr.read().decode()
            assert "Fatal" not in errors
            assert errors.count("\n") == (status == 1)


def test_unknown_topic_partition_and_node_are_named(bootstrap: str) -> None:
    outcome = tidelog("consume", "nowhere", bootstrap=bootstrap, status=1)
    assert "'nowhere'" in outcome.errors
    produce("narrow", b"a\n", bootstrap)
    outcome = tidelog("consume", "narrow", "--partition", 9, bootstrap=bootstrap, status=1)
    assert "partitions 0 to 0, not 9" in outcome.errors
