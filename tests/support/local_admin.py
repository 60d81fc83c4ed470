"""The admin API as a process of its own, and requests to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode


class LocalAdmin:
    """A running ``tidelog_functions.admin.local``. Made by ``local_admin``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.token = ""  # sent with requests

    def __call__(
        self, method: str, path: str, body: object = None, **query: object
    ) -> tuple[int, Any]:
        """Return the status and the body of the answer."""
        target = f"{self.url}{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            target, data, {"content-type": "application/json"}, method=method
        )
        if self.token:
            request.add_header("authorization", f"Bearer {self.token}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.load(refusal)

    def done(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """Return the body of an answer that must be a success."""
        status, answer = self(method, path, body, **query)
        assert status < 300, answer
        return answer


@contextmanager
def local_admin(
    metadata_url: str, objects_url: str, *options: str, **environment: str
) -> Iterator[LocalAdmin]:
    """Run the server on a free port."""
    command = [sys.executable, "-m", "tidelog_functions.admin.local", "--port", "0"]
    command += ["--metadata", metadata_url, "--objects", objects_url]
    command += options
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **environment})
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode()
        assert line.startswith("tidelog admin ready on http://"), line
        yield LocalAdmin(line.split()[-1])
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
