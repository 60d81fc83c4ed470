"""A console of a real node: its pages, its streams, and those who attack it."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from html import unescape
from pathlib import Path

import pytest
import tidelog_console
from confluent_kafka import Consumer, Producer, TopicPartition
from tidelog_console.listening_socket import CONNECTIONS_MAX
from tidelog_console.pages.tail import RECORDS_PER_SECOND
from tidelog_console.stream import STREAMS_MAX
from tidelog_core.cost.prices import list_prices
from tidelog_core.software_version import tidelog_version

from tests.console.conftest import SECONDS_MAX, SPENT_PUTS, TOPIC, create, produce
from tests.support.command import called
from tests.support.console import Browser, ConsoleProcess, running_console, tail_path
from tests.support.node_process import NodeProcess
from tools import kcat

PAGES = ("/", "/topics", f"/topics/{TOPIC}", f"/topics/{TOPIC}/tail", "/groups", "/tier")
PAGES += (f"/tier/{TOPIC}", "/money", "/jobs", "/faults")
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_served_with_its_policy(browser: Browser, path: str) -> None:
    page = browser.get(path)
    assert page.status == 200, page.text
    assert page.title
    assert page.headers["cache-control"] == "no-store"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    for inline in ("<script>", " style=", " onclick=", "javascript:"):
        assert inline not in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text


def test_the_cluster_page_shows_the_node_and_its_disk(browser: Browser, node: NodeProcess) -> None:
    page = browser.get("/")
    assert node.address in page.text
    assert "All is well" in page.text
    assert f"<td>{tidelog_version()}</td>" in page.text
    assert "free of" in page.text


def test_topics_are_listed_and_filtered(browser: Browser, node: NodeProcess) -> None:
    create(node.address, "filtered-away")
    assert f'href="/topics/{TOPIC}"' in browser.get("/topics").text
    page = browser.get("/topics?filter=AWAY")
    assert f'href="/topics/{TOPIC}"' not in page.text
    assert 'href="/topics/filtered-away"' in page.text
    assert "__consumer_offsets" not in browser.get("/topics").text
    assert 'name="internal" value="1" checked' in browser.get("/topics?internal=1").text


def test_a_topic_shows_its_partitions_and_settings(browser: Browser, node: NodeProcess) -> None:
    create(node.address, "configured", 2, segment_bytes="123456")
    produce(node.address, "configured", b"a", b"b", partition=1)
    page = browser.get("/topics/configured")
    assert "segment.bytes" in page.text
    assert "123456" in page.text
    assert "retention.ms" in page.text
    assert '<td class="n">2</td>' in page.text


def test_groups_are_shown_with_lag_in_records_and_seconds(
    browser: Browser, node: NodeProcess
) -> None:
    create(node.address, "lagging")
    produce(node.address, "lagging", *[b"v"] * 10)
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": f"g {MARKUP}"})
    consumer.commit(offsets=[TopicPartition("lagging", 0, 4)], asynchronous=False)
    consumer.close()
    page = browser.get("/groups")
    assert MARKUP not in page.text
    assert "&lt;img" in page.text
    path = page.text.partition('href="/group?id=')[2].partition('"')[0]
    group = browser.get(f"/group?id={path}")
    assert group.status == 200
    assert MARKUP not in group.text
    assert "<dd>6</dd>" in group.text
    assert re.search(r'href="/groups"[^>]*aria-current="page"', group.text)
    assert browser.get("/group?id=none").status == 404


def test_names_that_are_asked_for_are_text(browser: Browser) -> None:
    for path in (
        f"/topics?filter={MARKUP.replace(' ', '%20')}",
        "/topics/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "/tier/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        "/group?id=%3Cscript%3E",
        "/topics/%22%3E%3Cscript%3E/tail",
        "/%3Cscript%3E",
    ):
        page = browser.get(path)
        assert page.status in (200, 404), path
        assert "<script>" not in page.text
        assert MARKUP not in page.text


def test_faults_show_what_the_node_says(browser: Browser) -> None:
    page = browser.get("/faults")
    assert "None found" in page.text
    assert "ready" in page.text


def test_money_is_what_the_ledger_says(browser: Browser) -> None:
    prices = list_prices()
    page = browser.get("/money?last=day")
    item = re.search(r'data-item="object-put" data-dollars="([0-9.]+)"', page.text)
    assert item is not None
    assert float(item[1]) == pytest.approx(prices.dollars({"object-put": SPENT_PUTS}), rel=0.01)
    assert "no price" in page.text
    assert f'<th scope="row">{TOPIC}</th>' in page.text
    assert browser.get("/money?last=year").status == 200


def test_the_tier_map_has_the_numbers_of_the_command(browser: Browser, node: NodeProcess) -> None:
    """The browser test compares it after tiering, eviction and an erasure."""
    page = browser.get(f"/tier/{TOPIC}")
    shown = [json.loads(unescape(text)) for text in re.findall(r'data-status="(.*?)"', page.text)]
    rows = called("tier", "status", TOPIC, "--metadata", node.metadata_store, "--json").document
    assert shown == [{name: v for name, v in row.items() if name != "topic"} for row in rows]


def test_a_verification_is_a_form_with_a_token(browser: Browser) -> None:
    form = {"topic": TOPIC, "token": "0" * 64}
    assert browser.post("/jobs/verify", form).status == 403
    token = browser.get("/jobs").token
    other = Browser(browser.address)
    assert other.post("/jobs/verify", {**form, "token": token}).status == 403
    foreign = browser.post("/jobs/verify", {**form, "token": token}, Origin="http://127.0.0.1:1")
    assert foreign.status == 403
    assert browser.get("/jobs/verify").status == 405
    own = browser.post("/jobs/verify", {**form, "token": token}, Origin=f"http://{browser.address}")
    assert (own.status, own.headers["location"]) == (303, "/jobs")
    deadline = time.monotonic() + SECONDS_MAX
    while "intact" not in browser.get("/jobs").text:
        assert time.monotonic() < deadline
        time.sleep(0.1)


# -- the live tail --


def test_a_record_of_kcat_is_in_the_tail_within_a_second(
    browser: Browser, node: NodeProcess
) -> None:
    """Time is measured against the record's own timestamp, from which kcat's start is excluded."""
    found = kcat.command()
    if found is None:
        pytest.skip("kcat is not installed")
    program, environment = found
    with browser.events(tail_path(TOPIC)) as events:
        assert (events.status, events.next()[0]) == (200, "begin")
        command = [program, "-b", node.address, "-t", TOPIC, "-P", "-p", "2", "-K", ":"]
        subprocess.run(
            command, input=b"k:hello\n", env=environment, check=True, timeout=SECONDS_MAX
        )
        [record] = events.records(1)
        waited_ms = time.time() * 1000 - record["timestamp_ms"]
    assert (record["partition"], record["key"]["text"], record["value"]["text"]) == (
        2,
        "k",
        "hello",
    )
    assert waited_ms < 1_000


def test_values_of_every_kind_are_shown(browser: Browser, node: NodeProcess) -> None:
    create(node.address, "kinds")
    producer = Producer({"bootstrap.servers": node.address})
    producer.produce("kinds", None, key=b"\x00\x01")
    producer.produce("kinds", MARKUP.encode(), headers=[(MARKUP, b"\xff"), ("n", None)])
    producer.produce("kinds", b"x" * 100_000)
    assert producer.flush(SECONDS_MAX) == 0
    with browser.events(tail_path("kinds", last=10)) as events:
        tombstone, markup, large = events.records(3)
    assert tombstone["value"]["kind"] == "null"
    assert tombstone["key"] == {"kind": "hex", "text": "00 01", "size_bytes": 2, "is_cut": False}
    assert markup["value"]["text"] == MARKUP
    assert [header["name"] for header in markup["headers"]] == [MARKUP, "n"]
    assert (large["value"]["size_bytes"], large["value"]["is_cut"]) == (100_000, True)
    assert len(large["value"]["text"]) < 3_000


def test_a_flood_is_sampled_and_what_is_left_out_is_told(
    browser: Browser, node: NodeProcess
) -> None:
    create(node.address, "flood")
    with browser.events(tail_path("flood")) as events:
        assert events.next()[0] == "begin"
        produce(node.address, "flood", *[b"v" * 100] * 5_000)
        seen, skipped, last = 0, 0, -1
        while last < 4_999:
            name, data = events.next()
            if name == "records":
                seen += len(data)
                assert len(data) <= RECORDS_PER_SECOND
                last = data[-1]["offset"]
            elif name == "skipped":
                skipped += data["offsets"]
    assert seen <= 4 * RECORDS_PER_SECOND
    assert skipped > 4_000


def test_a_tail_of_no_topic_is_no_stream(browser: Browser) -> None:
    page = browser.get(tail_path("no-such-topic"))
    assert (page.status, page.headers["content-type"].partition(";")[0]) == (
        404,
        "application/json",
    )
    assert json.loads(page.text)["title"]


def test_viewers_are_limited_and_those_who_leave_make_room(browser: Browser) -> None:
    with ExitStack() as stack:
        for _ in range(STREAMS_MAX):
            answer = stack.enter_context(browser.events("/events/numbers"))
            assert answer.status == 200
        assert browser.get(tail_path(TOPIC)).status == 503
        assert browser.get("/").status == 200
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        with browser.events(tail_path(TOPIC)) as events:
            if events.status == 200:
                return
        assert time.monotonic() < deadline
        time.sleep(0.1)


# -- attacks --


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", ""])
def test_another_name_of_the_machine_is_refused(browser: Browser, host: str) -> None:
    """DNS rebinding: the other site's script would read the answers as its own."""
    for path in ("/", tail_path(TOPIC), "/static/console.js"):
        page = browser.get(path, Host=host)
        assert page.status == 421
        assert "<html" not in page.text


def test_another_sites_page_cannot_follow_or_frame(browser: Browser) -> None:
    assert browser.get(tail_path(TOPIC), Sec_Fetch_Site="cross-site").status == 403
    framed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert browser.get("/", **framed, Sec_Fetch_Dest="iframe").status == 403
    assert browser.get("/", **framed, Sec_Fetch_Dest="document").status == 200


@pytest.mark.parametrize(
    "path",
    ["/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/settings.py", "//etc"],
)
def test_only_static_files_are_served(browser: Browser, path: str) -> None:
    page = browser.get(path)
    assert page.status == 404
    assert "import" not in page.text


def test_large_forms_and_headers_are_refused(browser: Browser) -> None:
    token = browser.get("/jobs").token
    assert browser.post("/jobs/verify", {"topic": "x" * 100_000, "token": token}).status == 413
    assert browser.get("/", X_Long="x" * 20_000).status == 400
    for method in ("PUT", "DELETE", "PATCH"):
        assert browser.send(method, "/topics", None, {}).status == 405


def test_cookies_and_forms_of_any_bytes_do_not_harm(browser: Browser) -> None:
    cookie = 'tidelog_console_form="\xff"; tidelog_console_session="\xff"'
    assert browser.get("/topics", Cookie=cookie).status == 200
    for kind in (
        "application/x-www-form-urlencoded; charset=nonsense",
        "application/x-www-form-urlencoded; charset=utf-7",
        "multipart/form-data",
        "multipart/form-data; boundary=b",
    ):
        headers = {"Content_Type": kind}
        assert browser.send("POST", "/jobs/verify", b"topic=+\xff", headers).status == 403


def test_parameters_that_are_no_numbers_do_not_harm(browser: Browser) -> None:
    for query in ("last=9999999999999", "last=-1", "last=%D9%A3", "partition=99", "last=1e9"):
        assert browser.get(f"/topics/{TOPIC}/tail?{query}").status == 200
        assert browser.get(f"/tier/{TOPIC}?first={query.partition('=')[2]}").status == 200


def test_connections_are_limited(browser: Browser, console: ConsoleProcess) -> None:
    before = open_descriptors(console)
    with many_connections(console):
        time.sleep(0.2)
        # Besides one that is accepted, and those that make room for it.
        assert open_descriptors(console) - before <= CONNECTIONS_MAX + 8
    wait_served(browser)


HEADERS = "Host: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
SENT = {
    "nothing": "",
    "half a request": f"GET / HTTP/1.1\r\n{HEADERS}X-Never",
    "a whole one": f"GET /static/icon.svg HTTP/1.1\r\n{HEADERS}\r\n",
    "half a form": f"POST /login HTTP/1.1\r\n{HEADERS}Content-Length: 9\r\n\r\ntoken",
}


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
def test_connections_that_wait_for_their_client_make_room(
    browser: Browser, console: ConsoleProcess, sent: str
) -> None:
    """Else any program that can connect keeps all others out for seconds."""
    with many_connections(console, sent.encode()):
        assert browser.get("/topics").status == 200


def test_a_stream_does_not_make_room(
    browser: Browser, console: ConsoleProcess, node: NodeProcess
) -> None:
    create(node.address, "followed")
    with browser.events(tail_path("followed")) as events:
        assert events.next()[0] == "begin"
        with many_connections(console):
            assert browser.get("/topics").status == 200
            produce(node.address, "followed", b"still here")
            assert events.records(1)[0]["value"]["text"] == "still here"


@contextmanager
def many_connections(console: ConsoleProcess, sent: bytes = b"") -> Iterator[None]:
    """Open more connections than the console has, and keep them without sending more."""
    host, _, port = console.address.partition(":")
    with ExitStack() as stack:
        for _ in range(CONNECTIONS_MAX + 60):
            address = (host, int(port))
            one = stack.enter_context(socket.create_connection(address, timeout=SECONDS_MAX))
            with suppress(ConnectionError):  # It has made room already.
                one.sendall(sent)
        yield


def open_descriptors(console: ConsoleProcess) -> int:
    return len(list(Path(f"/proc/{console.process.pid}/fd").iterdir()))


def wait_served(browser: Browser) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            if browser.get("/topics").status == 200:
                return
        except (ConnectionError, http.client.HTTPException):
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_console_takes_a_free_port_if_it_may_and_the_usual_one_is_in_use(
    console: ConsoleProcess, node: NodeProcess
) -> None:
    taken = console.address.rpartition(":")[2]
    with running_console(node.address, "--port", taken, "--port-or-free") as other:
        assert other.address.rpartition(":")[2] not in ("0", taken)
        assert other.browser().get("/topics").status == 200


def test_a_browser_keeps_a_file_until_it_changes(browser: Browser) -> None:
    page = browser.get("/topics")
    names = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
    assert len(names) >= 4
    for name in names:
        file = browser.get(name)
        assert (file.status, "immutable" in file.headers["cache-control"]) == (200, True)
    assert browser.get("/static/console.css?v=old").headers["cache-control"] == "no-cache"


def test_pages_are_small_packed(browser: Browser) -> None:
    """The browser test has what Chromium transfers; this is each file of the console."""
    static = Path(tidelog_console.__file__).parent / "static"
    total = 0
    for name in sorted(path.name for path in static.iterdir()):
        connection = http.client.HTTPConnection(browser.address, timeout=SECONDS_MAX)
        connection.request("GET", f"/static/{name}", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Content-Encoding"]) == (200, "gzip")
        total += len(answer.read())
        connection.close()
    assert total < 70_000
