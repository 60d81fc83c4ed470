"""The console as a process of its own, and what a browser would ask it."""

from __future__ import annotations

import http.client
import json
import re
import select
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from urllib.parse import quote, urlencode

from tidelog_console.__main__ import READY

SECONDS_MAX = 30.0
_TOKEN = re.compile(r'name="token" value="([0-9a-f]+)"')


@dataclass(frozen=True, slots=True)
class Page:
    """One answer."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def title(self) -> str:
        """The text of the heading."""
        found = re.search(r"<h1>(.*?)</h1>", self.text)
        return "" if found is None else unescape(found[1])

    @property
    def token(self) -> str:
        """The token of a form on the page."""
        found = _TOKEN.search(self.text)
        assert found is not None, "no form on the page"
        return found[1]


@dataclass(slots=True)
class Browser:
    """Asks one console, and keeps its cookies."""

    address: str  # host:port
    cookies: dict[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None  # None: HTTP

    def get(self, path: str, **headers: str) -> Page:
        """Ask for a page."""
        return self.send("GET", path, None, headers)

    def post(self, path: str, form: Mapping[str, str], **headers: str) -> Page:
        """Send a form."""
        kind = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        return self.send("POST", path, urlencode(form).encode(), kind)

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Page:
        """Send a request; ``_`` in the names of headers stands for ``-``."""
        connection = self._connection()
        try:
            connection.request(method, path, body, self._headers(headers))
            answer = connection.getresponse()
            for name, value in answer.headers.items():
                if name.lower() == "set-cookie":
                    cookie, _, rest = value.partition(";")[0].partition("=")
                    self.cookies[cookie] = rest.strip('"')
            found = {name.lower(): value for name, value in answer.headers.items()}
            return Page(answer.status, found, answer.read().decode())
        finally:
            connection.close()

    @contextmanager
    def events(self, path: str) -> Iterator[Events]:
        """Follow a stream of events for the length of the block."""
        connection = self._connection()
        try:
            connection.request("GET", path, headers=self._headers({}))
            yield Events(connection.getresponse())
        finally:
            connection.close()

    def log_in(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> Page:
        """Fill in the form."""
        form = {"user": user, "password": password, "mechanism": mechanism}
        return self.post("/login", {**form, "token": self.get("/login").token})

    def _connection(self) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(self.address, timeout=SECONDS_MAX)
        return http.client.HTTPSConnection(self.address, timeout=SECONDS_MAX, context=self.tls)

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        headers = {name.replace("_", "-"): value for name, value in given.items()}
        if self.cookies:
            cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            headers.setdefault("Cookie", cookies)
        return headers


class Events:
    """The events of one stream."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.content_type = answer.headers["Content-Type"]
        self._answer = answer

    def next(self) -> tuple[str, Any]:
        """Return the next event and its data."""
        name = ""
        while True:
            line = self._answer.readline().decode()
            assert line, "the stream has ended"
            if line.startswith("event: "):
                name = line.removeprefix("event: ").strip()
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))

    def drain(self) -> None:
        """Read until the console ends the stream."""
        deadline = time.monotonic() + SECONDS_MAX
        while self._answer.readline():
            assert time.monotonic() < deadline, "the stream goes on"

    def records(self, count: int) -> list[dict[str, Any]]:
        """Return the next records."""
        found: list[dict[str, Any]] = []
        deadline = time.monotonic() + SECONDS_MAX
        while len(found) < count:
            assert time.monotonic() < deadline
            name, data = self.next()
            found += data if name == "records" else []
        return found


class ConsoleProcess:
    """A running console. Made by ``running_console``."""

    def __init__(self, address: str, process: subprocess.Popen[bytes]) -> None:
        self.address = address
        self.process = process

    @property
    def url(self) -> str:
        """Where browsers find it."""
        return f"http://{self.address}"

    def browser(self) -> Browser:
        """Return a browser without cookies."""
        return Browser(self.address)


@contextmanager
def running_console(bootstrap: str, *options: str) -> Iterator[ConsoleProcess]:
    """Run a console on a free port."""
    command = [sys.executable, "-m", "tidelog_console", "--port", "0", "--bootstrap", bootstrap]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], SECONDS_MAX)
        line = process.stdout.readline().decode() if ready else ""
        assert line.startswith(READY), line
        yield ConsoleProcess(line.removeprefix(READY).strip().partition("://")[2], process)
        process.terminate()
        assert process.wait(SECONDS_MAX) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def tail_path(topic: str, *, last: int = 0) -> str:
    """Return the path of a topic's stream of records."""
    return f"/events/tail?topic={quote(topic)}&last={last}"
