"""kcat against a real node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence

import pytest

from tests.contracts.client import CODECS, new_group
from tools import kcat


def run_kcat(arguments: Sequence[str], *, text: str = "") -> str:
    found = kcat.command()
    if found is None:
        pytest.skip("kcat is not installed: run `make tools`")
    program, environment = found
    done = subprocess.run(
        [program, *arguments],
        input=text,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", CODECS)
def test_kcat_reads_back_what_it_wrote(
    bootstrap: str, new_topic: Callable[..., str], codec: str
) -> None:
    topic = new_topic(partitions=1)
    lines = "".join(f"key{i}:value {i}\n" for i in range(100))
    run_kcat(["-P", "-b", bootstrap, "-t", topic, "-K:", "-z", codec, "-H", "a=b"], text=lines)
    read = run_kcat(["-C", "-b", bootstrap, "-t", topic, "-e", "-q", "-f", "%o %k:%s %h\n"])
    assert read.splitlines() == [f"{i} key{i}:value {i} a=b" for i in range(100)]


def test_kcat_reads_as_a_group(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    run_kcat(["-P", "-b", bootstrap, "-t", topic], text="".join(f"{i}\n" for i in range(30)))
    group = [
        "-b",
        bootstrap,
        "-G",
        new_group(),
        "-q",
        "-c",
        "30",
        "-X",
        "auto.offset.reset=earliest",
    ]
    assert sorted(run_kcat([*group, topic]).split(), key=int) == [str(i) for i in range(30)]


def test_kcat_lists_the_cluster(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    cluster = json.loads(run_kcat(["-L", "-J", "-b", bootstrap, "-t", topic]))
    assert [broker["name"] for broker in cluster["brokers"]] == [bootstrap]
    [listed] = cluster["topics"]
    assert listed["topic"] == topic
    assert [partition["partition"] for partition in listed["partitions"]] == [0, 1, 2]


def test_kcat_finds_an_offset_by_time(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=1)
    run_kcat(["-P", "-b", bootstrap, "-t", topic], text="one\ntwo\n")
    assert run_kcat(["-Q", "-b", bootstrap, "-t", f"{topic}:0:1"]).split()[-1] == "0"
    assert run_kcat(["-Q", "-b", bootstrap, "-t", f"{topic}:0:-1"]).split()[-1] == "2"
