"""The admin API over HTTP: for commands that would need the stores, where there is no way to them.

Requests to API Gateway are signed with the AWS credentials of the environment; others carry the
token in the file of TIDELOG_ADMIN_TOKEN_FILE, if there is one. Long work is a job of the API, which
is polled.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode, urlsplit

import typer

from tidelog_cli.connecting import connection
from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.output import note

if TYPE_CHECKING:
    from urllib.request import Request

SECONDS_MAX = 60.0  # of one request; the API answers within 28
WAIT_SECONDS = 15  # for news of a job, in one request; an API on AWS answers at once
LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 0.5, 4.0  # between two requests for news
PAGE = 1_000
ANSWER_BYTES_MAX = 64 * 1024 * 1024
PAUSES_SECONDS = (1.0, 2.0, 4.0)  # after answers of ``AWAY``, and without one
UNENDED = frozenset({"waiting", "running"})  # states of a job
AWAY = frozenset({429, 502, 503, 504})
SIGNED_HOSTS = ".amazonaws.com"
TOKEN_FILE_VARIABLE = "TIDELOG_ADMIN_TOKEN_FILE"

AdminUrl = Annotated[
    str | None,
    typer.Option(
        "--admin-url",
        envvar="TIDELOG_ADMIN_URL",
        metavar="URL",
        help="Admin API to ask, where the stores are out of reach, or admin.url of the context; "
        f"its token is the text of the file {TOKEN_FILE_VARIABLE}.",
        show_default=False,
    ),
]


class ApiAway(CommandFailed):
    """The API or its store is away, or asks for a pause: the same request may succeed later."""


class ApiSilent(ApiAway):
    """Nothing answers."""


class AdminApi:
    """Requests to the admin API of a cluster."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(f"the admin API's URL {url!r} must begin with http:// or https://")
        self._url = url.rstrip("/")
        self._has_answered = False
        path = os.environ.get(TOKEN_FILE_VARIABLE)
        self._token = None if not path else Path(path).read_text().strip()

    def ask(
        self, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        """Return the answer's body. Raises ``CommandFailed`` with the API's reason and hint."""
        from urllib.error import HTTPError, URLError
        from urllib.request import Request

        target = f"{self._url}{path}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        request = Request(target, data, {"content-type": "application/json"}, method=method)
        self._identify(request)
        try:
            with _open(request) as answer:
                found: dict[str, Any] = json.loads(answer.read(ANSWER_BYTES_MAX))
                self._has_answered = True
                return found
        except HTTPError as refusal:
            with refusal:
                text = _reason(refusal.code, refusal.read(ANSWER_BYTES_MAX))
            raise (ApiAway if refusal.code in AWAY else CommandFailed)(text) from None
        except (URLError, TimeoutError) as error:
            reason = getattr(error, "reason", error)
            raise ApiSilent(f"the admin API at {self._url} does not answer: {reason}") from None
        except ValueError as error:
            raise CommandFailed(
                f"{self._url} is no admin API: {error}; check --admin-url"
            ) from None

    def topics(self, wanted: list[str]) -> list[str]:
        """Return the wanted topics, or all. Raises ``UnknownTopicOrPartition``."""
        from tidelog_core.errors import UnknownTopicOrPartition

        known: list[str] = []
        query: dict[str, object] = {"limit": PAGE}
        while True:
            page = self.ask("GET", "/topics", query=query)
            known += [topic["name"] for topic in page["topics"]]
            if page["next_after"] is None:
                break
            query["after"] = page["next_after"]
        for name in wanted:
            if name not in known:
                raise UnknownTopicOrPartition.of_topic(name, known)
        return wanted or known

    def run_job(self, path: str, body: Mapping[str, object]) -> tuple[str, dict[str, Any]]:
        """Start a job and tell its steps on stderr; return its id and its result.

        It goes on if this process ends, and if the API is away for a while.
        """
        from uuid import uuid4

        # With an id of ours, a request that is sent again starts nothing twice.
        job_id = str(uuid4())
        job = self._ask_again("POST", path, {**body, "job_id": job_id})
        known, look_seconds = 0, LOOK_SECONDS_MIN
        try:
            while True:
                for step in job["steps"]:
                    note(step)
                known = max(known, job["step_count"])
                if job["state"] == "done":
                    result: dict[str, Any] = job["result"]
                    return job_id, result
                if job["state"] == "failed":
                    raise CommandFailed(job["problem"])
                if job["state"] == "cancelled":
                    raise CommandFailed(f"job {job_id} was cancelled; what it has done stays done")
                query = {"after_step": known, "wait_seconds": WAIT_SECONDS}
                next_look = time.monotonic() + look_seconds
                job = self._ask_again("GET", f"/jobs/{job_id}", query=query)
                if job["step_count"] > known or job["state"] not in UNENDED:
                    look_seconds = LOOK_SECONDS_MIN
                else:
                    time.sleep(max(0.0, next_look - time.monotonic()))
                    look_seconds = min(2 * look_seconds, LOOK_SECONDS_MAX)
        except KeyboardInterrupt:
            note(f"job {job_id} goes on: `tidelog admin-job show` or `cancel` it")
            raise

    def _ask_again(
        self, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        """Ask as ``ask``, several times if the API or its store is away.

        An address at which nothing has answered yet is asked once.
        """
        for pause_seconds in PAUSES_SECONDS:
            try:
                return self.ask(method, path, body, query)
            except ApiAway as away:
                if isinstance(away, ApiSilent) and not self._has_answered:
                    raise
                note(f"{away}; trying again in {pause_seconds:g} s")
                time.sleep(pause_seconds)
        return self.ask(method, path, body, query)

    def _identify(self, request: Request) -> None:
        if self._token is not None:
            request.add_header("authorization", f"Bearer {self._token}")
        elif (urlsplit(self._url).hostname or "").endswith(SIGNED_HOSTS):
            _sign(request)


def chosen_api(context: typer.Context, admin_url: str | None, *stores: str) -> AdminApi | None:
    """Return the admin API if it is to be asked, ``None`` if the stores are to be read.

    What the command line says counts, then the environment, then the context. Where one of them
    has both, the command line is wrong, and the others mean the API. ``stores`` are the
    parameters of the command that locate stores.
    """
    given = [name for name in stores if _source(context, name) == "COMMANDLINE"]
    if _source(context, "admin_url") == "COMMANDLINE":
        if given:
            option = given[0].strip("_").replace("_", "-")
            raise UsageError(f"--admin-url needs no --{option}: give one of them")
        return AdminApi(admin_url or "")
    if given:
        return None
    if admin_url is None and not any(_source(context, name) == "ENVIRONMENT" for name in stores):
        admin_url = connection().get("admin.url")
    return None if admin_url is None else AdminApi(admin_url)


def required_api(admin_url: str | None) -> AdminApi:
    """Return the admin API of the option, the environment or the context. Raises ``UsageError``."""
    url = admin_url or connection().get("admin.url")
    if url is None:
        raise UsageError("no admin API given: give --admin-url, or a --context with admin.url")
    return AdminApi(url)


def _source(context: typer.Context, name: str) -> str:
    source = context.get_parameter_source(name)
    return "" if source is None else source.name


def _sign(request: Request) -> None:
    """Add the headers of AWS Signature Version 4."""
    try:
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.session import Session
    except ModuleNotFoundError:
        raise CommandFailed("this needs AWS's library: pip install 'tidelog[aws]'") from None
    session = Session()
    credentials = session.get_credentials()
    if credentials is None:
        raise CommandFailed("no AWS credentials are found: set a profile or the environment's")
    host = urlsplit(request.full_url).hostname or ""
    region = host.split(".")[-3] if host.count(".") >= 3 else session.get_config_variable("region")
    signed = AWSRequest(
        request.get_method(), request.full_url, data=request.data, headers=dict(request.headers)
    )
    SigV4Auth(credentials, "execute-api", region).add_auth(signed)
    for name, value in signed.headers.items():
        request.add_header(name, value)


def _open(request: Request) -> Any:
    """Return the answer. A redirection is an error: it would take the token to another server."""
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirection(HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    return build_opener(NoRedirection).open(request, timeout=SECONDS_MAX)


def _reason(status: int, body: bytes) -> str:
    """Return what a problem document says, with its hint."""
    try:
        problem = json.loads(body)
        detail, hint = str(problem["detail"]).rstrip("."), problem.get("hint")
    except (ValueError, KeyError, TypeError):
        return f"the admin API answered {status}; check --admin-url"
    return f"{detail}; {hint}" if hint else detail
