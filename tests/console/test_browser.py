"""The console in Debian's Chromium, as people use it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from tests.console.conftest import SECONDS_MAX, create, produce
from tests.support.command import tidelog
from tests.support.console import ConsoleProcess, running_console
from tests.support.node_process import NodeProcess
from tools import chromium, kcat

pytestmark = pytest.mark.slow

PAGE_BYTES_MAX = 100_000
CONTRAST_MIN = 4.5  # WCAG 2.2, 1.4.3, level AA
TOPIC, MARKUP = "orders", "<img src=x onerror='window.broken=1'><script>window.broken=1</script>"
PAGES = ("/", "/topics", f"/topics/{TOPIC}", f"/topics/{TOPIC}/tail?last=20", "/groups", "/tier")
PAGES += (f"/tier/{TOPIC}", "/money", "/jobs", "/faults", "/nope")
CONFIG = {"remote.task.interval.ms": "50", "log.retention.check.interval.ms": "100"}
SMALL = {"segment_bytes": "3000", "file_delete_delay_ms": "0", "local_retention_bytes": "9000"}

# Every text of the page: its colour against the nearest ground that is not see-through.
CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255;
    return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (el) => { for (; el; el = el.parentElement) {
    const c = parse(getComputedStyle(el).backgroundColor); if (c.length < 4 || c[3] > 0) return c.slice(0, 3); }
    return [255, 255, 255]; };
  const found = [];
  for (const el of document.body.querySelectorAll("*")) {
    const own = [...el.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !el.checkVisibility() || el.closest(".hidden, svg, option")) continue;
    const [a, b] = [light(parse(getComputedStyle(el).color).slice(0, 3)), light(ground(el))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([ratio, el.tagName + "." + el.className + ": " + el.textContent.trim().slice(0, 40)]);
  }
  return found;
}"""


@dataclass(slots=True)
class Seen:
    """What a page did."""

    hosts: set[str] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)  # errors, and what the policy blocked


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with a topic that is tiered in small segments, and a value with markup."""
    folder = tmp_path_factory.mktemp("browser")
    with NodeProcess(folder / "data", config=CONFIG, arguments=("--http-port", "0")) as running:
        create(running.address, TOPIC, 2, **SMALL)
        fill(running.address, 300)
        yield running


def fill(address: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(count):
        key, value = b"k%d" % (number % 7), b"%06d" % number + b"x" * 90
        producer.produce(TOPIC, value, key, partition=number % 2)
        if number % 10 == 9:
            producer.flush(SECONDS_MAX)
    headers = [(MARKUP, MARKUP.encode())]
    producer.produce(TOPIC, MARKUP.encode(), MARKUP.encode(), partition=0, headers=headers)
    producer.produce(TOPIC, b"\x00\xff", None, partition=0)
    assert producer.flush(SECONDS_MAX) == 0


@pytest.fixture(scope="module")
def console(node: NodeProcess) -> Iterator[ConsoleProcess]:
    stores = ("--metadata", f"sqlite://{node.data_dir}/metadata.db")
    stores += ("--objects", f"file://{node.data_dir}/objects")
    with running_console(node.address, *stores, "--node-http", node.http_address) as running:
        yield running


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    program = chromium.command()
    if program is None:
        pytest.skip("Chromium is not installed: make tools")
    # A sandbox of its own needs rights that containers do not have.
    running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
    yield running
    running.close()


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def opened(browser: Browser, console: ConsoleProcess, seen: Seen) -> Iterator[Callable[..., Page]]:
    """Open a page of the console in a browser of its own; nothing may complain."""
    contexts = []

    def open_(path: str, **options: Any) -> Page:
        context = browser.new_context(base_url=console.url, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).netloc))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("console", lambda message: note(message.type, message.text))
        page.goto(path, wait_until="load")
        return page

    def note(kind: str, text: str) -> None:
        if kind in ("error", "warning") and "404 (Not Found)" not in text:
            seen.complaints.append(text)

    yield open_
    for context in contexts:
        context.close()
    assert seen.complaints == []
    assert seen.hosts == {console.address}


def test_a_record_of_kcat_is_on_the_page_within_a_second(
    opened: Callable[..., Page], node: NodeProcess
) -> None:
    found = kcat.command()
    if found is None:
        pytest.skip("kcat is not installed")
    program, environment = found
    page = opened(f"/topics/{TOPIC}/tail?last=0")
    page.wait_for_selector("#tail-state.good")
    page.evaluate("""() => new MutationObserver((changes) => {
      for (const change of changes) for (const row of change.addedNodes)
        if (row.textContent.includes("from kcat")) window.shownAt = Date.now();
    }).observe(document.querySelector("#tail tbody"), {childList: true})""")
    command = [program, "-b", node.address, "-t", TOPIC, "-P", "-p", "1"]
    subprocess.run(command, input=b"from kcat\n", env=environment, check=True, timeout=SECONDS_MAX)
    page.wait_for_function("window.shownAt", timeout=SECONDS_MAX * 1000)
    written = page.locator("#tail tbody tr", has_text="from kcat").locator("td").first
    written_ms = page.evaluate("(text) => Date.parse(text)", written.get_attribute("title"))
    assert page.evaluate("window.shownAt") - written_ms < 1_000


def test_values_are_text_whatever_they_hold(opened: Callable[..., Page]) -> None:
    page = opened(f"/topics/{TOPIC}/tail?last=20")
    row = page.locator("#tail tbody tr", has_text="window.broken").first
    row.wait_for()
    assert row.locator("td.key").inner_text() == MARKUP
    assert MARKUP in row.locator("td.value").inner_text()
    assert page.locator("#tail .hex", has_text="00 ff").count() == 1
    assert page.locator("#tail img, #tail script").count() == 0
    assert page.evaluate("window.broken === undefined")


def test_the_policy_blocks_what_gets_into_a_page_all_the_same(
    opened: Callable[..., Page], seen: Seen
) -> None:
    page = opened("/topics")
    page.evaluate(
        """(markup) => { document.querySelector("main").innerHTML = markup;
      const script = document.createElement("script"); script.textContent = "window.broken = 1";
      document.body.append(script); }""",
        MARKUP.replace("src=x", "src=/static/none"),
    )
    page.evaluate("fetch('http://localhost:9/leak').catch(() => {})")
    page.wait_for_timeout(300)
    assert page.evaluate("window.broken === undefined")
    assert sum("Content Security Policy" in text for text in seen.complaints) >= 3
    seen.complaints.clear()


def statuses(page: Page) -> list[dict[str, Any]]:
    return [
        json.loads(one.get_attribute("data-status") or "")
        for one in page.locator("[data-status]").all()
    ]


def rows_of_command(node: NodeProcess) -> list[dict[str, Any]]:
    command = ("tier", "status", TOPIC, "--data-dir", node.data_dir, "--json")
    return [
        {name: value for name, value in row.items() if name != "topic"}
        for row in tidelog(*command).document
    ]


def bars(page: Page, partition: int) -> list[str]:
    rects = page.locator(f'svg[aria-label="Segments of partition {partition}"] rect').all()
    return [(one.get_attribute("class") or "").removeprefix("s-") for one in rects]


def wait_equal(
    page: Page, node: NodeProcess, until: Callable[[list[dict[str, Any]]], bool]
) -> None:
    """Load the map again until it is what the command says, and as the test wants it."""
    deadline = time.monotonic() + 60
    while True:
        before = rows_of_command(node)
        page.reload()
        shown = statuses(page)
        if before == shown and until(before):
            return
        assert time.monotonic() < deadline, (before, shown)


def test_the_tier_map_is_what_tier_status_says(
    opened: Callable[..., Page], node: NodeProcess
) -> None:
    """After tiering, eviction and an erasure."""
    page = opened(f"/tier/{TOPIC}")
    wait_equal(
        page,
        node,
        lambda rows: all(
            row["segments"] >= 3 and row["local_start"] > 0 and not row["copying"] for row in rows
        ),
    )
    for row in statuses(page):
        drawn = bars(page, row["partition"])
        assert drawn.count("tiered") + drawn.count("both") == row["segments"]
        assert drawn[0] == "tiered"  # evicted
        assert drawn.index("tiered") < drawn.index("both")
        assert drawn[-1] == "local"
    tidelog("erase", TOPIC, "--data-dir", node.data_dir, "--key", "k3")
    wait_equal(page, node, lambda rows: all(not row["deleting"] for row in rows))
    for row in statuses(page):
        drawn = bars(page, row["partition"])
        assert drawn.count("erased") >= 3
        in_tier = [one for one in drawn if one in ("tiered", "both", "erased", "rewritten")]
        assert len(in_tier) == row["segments"]
    page.goto("/jobs")
    receipt = page.locator("main table tbody tr", has_text=TOPIC)
    assert "done" in receipt.inner_text()


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_small_and_reads_well_in_light_and_dark(
    opened: Callable[..., Page], path: str
) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page = opened("/static/icon.svg", color_scheme=scheme)
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        transferred: list[float] = []
        session.on(
            "Network.loadingFinished",
            lambda event, sizes=transferred: sizes.append(event["encodedDataLength"]),
        )
        page.goto(path, wait_until="load")
        page.wait_for_timeout(300)
        assert 1_000 < sum(transferred) < PAGE_BYTES_MAX
        ratios = page.evaluate(CONTRASTS)
        assert len(ratios) > 5
        assert [words for ratio, words in ratios if ratio < CONTRAST_MIN] == []
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] != grounds[1]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_telephone(opened: Callable[..., Page], path: str) -> None:
    page = opened(path, viewport={"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent.trim().slice(0, 40)"))


def test_everything_is_reached_with_the_keyboard(opened: Callable[..., Page]) -> None:
    page = opened("/topics")
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    assert page.locator(".skip").bounding_box()["y"] >= 0  # type: ignore[index]
    order = []
    for _ in range(9):
        page.keyboard.press("Tab")
        order.append(focused(page))
    assert order[:3] == ["Tidelog", "Cluster", "Topics"]
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "filter"


def test_shortcuts(opened: Callable[..., Page]) -> None:
    page = opened("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter"
    page.keyboard.type("g?p")  # They are letters there.
    assert page.locator("#filter").input_value() == "g?p"
    page.locator("h1").click()
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#keys").is_visible()
    page.goto(f"/topics/{TOPIC}/tail")
    page.wait_for_selector("#tail-state.good")
    page.keyboard.press("p")
    assert page.locator("#tail-state").inner_text() == "Paused"
    assert page.locator("#tail-pause").get_attribute("aria-pressed") == "true"
    page.keyboard.press("p")
    page.wait_for_selector("#tail-state.good")


def test_pages_follow_the_cluster_by_themselves(
    opened: Callable[..., Page], node: NodeProcess
) -> None:
    page = opened("/")
    topics = page.locator(".stats div", has_text="Topics").locator("dd")
    before = int(topics.inner_text())
    page.evaluate("window.isSame = true")
    create(node.address, "another")
    page.wait_for_function(
        "(n) => document.querySelectorAll('.stats dd')[1].textContent === String(n)", arg=before + 1
    )
    produce(node.address, TOPIC, *[b"v"] * 50)
    page.wait_for_function(
        "() => /now [1-9]/.test(document.getElementById('rate-now').textContent)"
    )
    assert page.evaluate("window.isSame")
    assert page.locator(".chart canvas").count() == 1


def test_pages_outlive_the_node(opened: Callable[..., Page], node: NodeProcess, seen: Seen) -> None:
    page, tail = opened("/topics/another"), opened("/topics/another/tail")
    tail.wait_for_selector("#tail-state.good")
    node.kill()
    page.wait_for_selector("#away", state="visible", timeout=60_000)
    assert page.locator("h1").inner_text() == "another"
    assert page.locator("#live table").count() == 1
    assert opened("/topics").locator("h1").inner_text() == "The cluster does not answer"
    node.start()
    page.wait_for_selector("#away", state="hidden", timeout=60_000)
    produce(node.address, "another", b"after the restart")
    tail.wait_for_selector("text=after the restart", timeout=60_000)
    assert tail.locator("#tail-state").inner_text() == "Live"
    seen.complaints.clear()  # The browser notes answers of 503.


def test_pictures_for_the_docs_are_small() -> None:
    folder = Path(__file__).parents[2] / "docs" / "pictures"
    for picture in folder.glob("console-*"):
        assert picture.stat().st_size < 60_000
