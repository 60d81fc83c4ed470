"""EMR Serverless for tests, on a real socket: a client token starts one run.

Requests are judged by AWS's own model of the service, and answers have its shapes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.aws_models import problems_of_request


class EmrServer:
    """One application's runs."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []  # the requests of StartJobRun, with id and state
        self.refuses = False
        self.loses_answers = (
            0  # the number of starts whose connection is cut after the run has begun
        )
        self.url = ""
        self._lock = threading.Lock()

    def start(self, asked: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            for run in self.runs:
                if run["clientToken"] == asked["clientToken"]:
                    return run
            run = {**asked, "id": f"run-{len(self.runs)}", "state": "SUBMITTED"}
            self.runs.append(run)
            return run

    def under_way(self, states: list[str]) -> list[dict[str, Any]]:
        with self._lock:
            found = [run for run in self.runs if run["state"] in states]
        names = ("id", "name", "state")
        return [{"applicationId": "app", **{name: run[name] for name in names}} for run in found]

    def end(self, number: int, state: str = "SUCCESS") -> None:
        self.runs[number]["state"] = state


@contextmanager
def served() -> Iterator[EmrServer]:
    """Serve an application with the id ``app``."""
    emr = EmrServer()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            asked = json.loads(self.rfile.read(size))
            assert self.path == "/applications/app/jobruns"
            request = {"applicationId": "app", **asked}
            problems = problems_of_request("emr-serverless", "StartJobRun", request)
            if emr.refuses or problems:
                message = "; ".join(problems) or "no"
                self._answer(400, {"message": message}, error="ValidationException")
                return
            run = emr.start(asked)
            if emr.loses_answers:
                emr.loses_answers -= 1
                self.close_connection = True
                return
            self._answer(200, {"applicationId": "app", "jobRunId": run["id"], "arn": "arn"})

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            assert parts.path == "/applications/app/jobruns"
            states = parse_qs(parts.query)["states"]
            request = {"applicationId": "app", "states": states}
            if problems := problems_of_request("emr-serverless", "ListJobRuns", request):
                self._answer(400, {"message": "; ".join(problems)}, error="ValidationException")
                return
            self._answer(200, {"jobRuns": emr.under_way(states)})

        def _answer(self, status: int, body: dict[str, Any], *, error: str = "") -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if error:
                self.send_header("x-amzn-ErrorType", error)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    emr.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield emr
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
