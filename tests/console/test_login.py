"""A console where visitors log in: they see what the cluster's ACLs let them see."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from tidelog_console.sessions import (
    SESSIONS_MAX,
    SESSIONS_PER_USER_MAX,
    Sessions,
    TooManySessions,
)
from tidelog_console.settings import ConsoleSettings
from tidelog_core.metadata.admin_jobs import JobKind
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_functions.admin_jobs.requests import VerificationRequest
from tidelog_functions.admin_jobs.states import new_job
from tidelog_functions.admin_jobs.store import JobStore

from tests.console.conftest import SECONDS_MAX, create, produce
from tests.support.certificates import Authority
from tests.support.console import Browser, ConsoleProcess, running_console, tail_path
from tests.support.sasl_node import PASSWORD, USER, SaslNode

SESSION = "tidelog_console_session"
ROOT, ROOT_PASSWORD = "root", "root-secret"
SHOWN, UNSEEN = "shown", "unseen"


@pytest.fixture(scope="module")
def sasl_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslNode]:
    """A node with ACLs: alice may describe and read one topic, root everything."""
    folder = tmp_path_factory.mktemp("login")
    node = SaslNode(
        folder / "node",
        authorizer_class_name="tidelog.acl",
        super_users=f"User:{ROOT};User:ANONYMOUS",
    )
    node.metadata_store = f"sqlite://{folder}/metadata.db"
    node.object_store = f"file://{folder}/objects"
    with node:
        node.prepare()
        node.set_password(ROOT_PASSWORD, ROOT)
        for topic in (SHOWN, UNSEEN):
            create(node.address, topic)
            produce(node.address, topic, b"value")
        allow(node, AclOperation.READ)
        for user in (USER, ROOT):
            asyncio.run(start_job(str(node.metadata_store), user))
        yield node


async def start_job(metadata_url: str, user: str) -> None:
    """Store a job of the admin API, as one that the user has started."""
    request = VerificationRequest([f"of-{user}"]).to_json()
    now_ms = time.time_ns() // 1_000_000
    job = new_job(uuid4(), JobKind.VERIFICATION, request, caller=f"User:{user}", now_ms=now_ms)
    async with opened_metadata_store(metadata_url, may_be_new=True) as store:
        await JobStore(store, lambda: now_ms).add(job)


def allow(node: SaslNode, operation: AclOperation) -> None:
    """Let alice do something with the topic that she may see."""
    acl = AclBinding(
        ResourceType.TOPIC,
        SHOWN,
        ResourcePatternType.LITERAL,
        f"User:{USER}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient({"bootstrap.servers": node.address})
    for done in admin.create_acls([acl]).values():
        done.result(SECONDS_MAX)


@pytest.fixture(scope="module")
def console(sasl_node: SaslNode) -> Iterator[ConsoleProcess]:
    """The console of the node."""
    stores = ("--metadata", str(sasl_node.metadata_store), "--objects", str(sasl_node.object_store))
    protocol = ("--security-protocol", "SASL_PLAINTEXT")
    with running_console(sasl_node.sasl_address, *protocol, *stores) as running:
        yield running


@pytest.fixture
def browser(console: ConsoleProcess) -> Browser:
    return console.browser()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_a_user_logs_in_with_every_mechanism(browser: Browser, mechanism: str) -> None:
    answer = browser.log_in(USER, PASSWORD, mechanism)
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert USER in browser.get("/topics").text


def test_a_page_asks_to_log_in(browser: Browser) -> None:
    for path in ("/", "/topics", f"/tier/{UNSEEN}", "/faults", "/nope"):
        page = browser.get(path)
        assert (page.status, page.headers["location"]) == (303, "/login")
        assert UNSEEN not in page.text
    assert browser.get(tail_path(UNSEEN)).status == 401
    assert browser.get("/topics", HX_Request="true").headers["hx-refresh"] == "true"
    assert browser.get("/static/console.css").status == 200


def test_wrong_logins_are_alike(browser: Browser) -> None:
    unknown = browser.log_in("nobody", "x")
    wrong = browser.log_in(USER, "x")
    assert (unknown.status, wrong.status) == (401, 401)
    assert "The user or the password is wrong" in unknown.text
    assert "The user or the password is wrong" in wrong.text
    assert SESSION not in browser.cookies
    for form in ({"user": "", "password": "x"}, {"user": "x" * 300}, {"mechanism": "NONE"}):
        assert browser.post("/login", {**form, "token": browser.get("/login").token}).status == 401


def test_a_user_name_is_text(browser: Browser) -> None:
    page = browser.log_in('"><script>alert(1)</script>', "x")
    assert page.status == 401
    assert "<script>alert" not in page.text


def test_a_login_of_another_sites_form_is_refused(browser: Browser) -> None:
    form = {"user": USER, "password": PASSWORD, "mechanism": "PLAIN"}
    assert browser.post("/login", form).status == 403
    token = browser.get("/login").token
    assert browser.post("/login", {**form, "token": token[:-1] + "g"}).status == 403
    foreign = browser.post("/login", {**form, "token": token}, Origin="https://evil.example")
    assert foreign.status == 403
    assert SESSION not in browser.cookies


def test_every_page_shows_only_what_the_user_may_see(browser: Browser) -> None:
    browser.log_in(USER, PASSWORD)
    for path in ("/", "/topics", "/groups", "/tier", "/jobs", "/faults", f"/topics/{SHOWN}"):
        page = browser.get(path)
        assert page.status == 200, page.text
        assert UNSEEN not in page.text, path
    assert SHOWN in browser.get("/topics").text
    assert browser.get(f"/tier/{SHOWN}").status == 200
    for path in (f"/topics/{UNSEEN}", f"/tier/{UNSEEN}", f"/topics/{UNSEEN}/tail"):
        assert browser.get(path).status in (403, 404), path
    assert browser.get(tail_path(UNSEEN)).status in (403, 404)
    assert "those who may describe the cluster" in browser.get("/faults").text
    assert "free of" not in browser.get("/").text
    assert browser.get("/money").status == 403
    form = {"topic": SHOWN, "token": browser.get("/topics").token}
    assert browser.post("/jobs/verify", form).status == 403
    with browser.events(tail_path(SHOWN, last=1)) as events:
        assert events.records(1)[0]["value"]["text"] == "value"


def test_a_super_user_sees_everything(browser: Browser) -> None:
    browser.log_in(ROOT, ROOT_PASSWORD)
    assert UNSEEN in browser.get("/topics").text
    assert browser.get(f"/tier/{UNSEEN}").status == 200
    assert "free of" in browser.get("/").text
    assert browser.get("/money").status == 200


def test_jobs_are_those_that_the_user_may_see(browser: Browser) -> None:
    browser.log_in(USER, PASSWORD)
    page = browser.get("/jobs")
    assert f"of-{USER}" in page.text
    assert f"of-{ROOT}" not in page.text
    browser.log_in(ROOT, ROOT_PASSWORD)
    page = browser.get("/jobs")
    assert f"of-{USER}" in page.text
    assert f"of-{ROOT}" in page.text


def test_a_right_that_is_given_counts_at_once(browser: Browser, sasl_node: SaslNode) -> None:
    browser.log_in(USER, PASSWORD)
    assert "You may not see the topic" in browser.get(f"/topics/{SHOWN}").text
    allow(sasl_node, AclOperation.DESCRIBE_CONFIGS)
    deadline = time.monotonic() + SECONDS_MAX
    while "You may not see the topic" in browser.get(f"/topics/{SHOWN}").text:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_session_ends_with_its_logout_and_its_streams_too(browser: Browser) -> None:
    browser.log_in(USER, PASSWORD)
    session = browser.cookies[SESSION]
    token = browser.get("/topics").token
    assert browser.post("/logout", {"token": "0" * 64}).status == 403
    assert browser.get("/topics").status == 200
    with browser.events("/events/numbers?topic=shown") as events:
        assert events.status == 200
        assert browser.post("/logout", {"token": token}).status == 303
        events.drain()
    browser.cookies[SESSION] = session  # It was stolen before.
    assert browser.get("/topics").headers["location"] == "/login"


def test_a_cookie_that_was_changed_is_none(browser: Browser) -> None:
    browser.log_in(USER, PASSWORD)
    session_id, end, signature = browser.cookies[SESSION].split(".")
    for cookie in (
        f"{session_id}.{int(end) + 1}.{signature}",
        f"{session_id}.{end}.{signature[:-1]}",
        f"{session_id}x.{end}.{signature}",
        f"..{signature}",
        "",
        "." * 50,
    ):
        browser.cookies[SESSION] = cookie
        assert browser.get("/topics").status == 303, cookie


def test_the_cookies_are_for_the_console_alone(browser: Browser) -> None:
    page = browser.get("/login")
    cookie = page.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    answer = browser.log_in(USER, PASSWORD)
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=Strict" in answer.headers["set-cookie"]
    assert PASSWORD not in answer.headers["set-cookie"]


def test_a_user_has_a_bounded_number_of_sessions(console: ConsoleProcess) -> None:
    browsers = [console.browser() for _ in range(SESSIONS_PER_USER_MAX + 1)]
    for one in browsers:
        assert one.log_in(ROOT, ROOT_PASSWORD, "PLAIN").status == 303
    assert browsers[0].get("/topics").status == 303
    assert browsers[-1].get("/topics").status == 200


def test_a_console_with_a_certificate_speaks_https_alone(
    sasl_node: SaslNode, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "authority")
    options = ("--security-protocol", "SASL_PLAINTEXT")
    options += ("--certificate", str(authority.node_pem()))
    with running_console(sasl_node.sasl_address, *options) as console:
        port = console.address.rpartition(":")[2]
        tls = ssl.create_default_context(cafile=authority.trusted)
        browser = Browser(f"localhost:{port}", tls=tls)
        answer = browser.log_in(USER, PASSWORD)
        assert answer.status == 303
        assert "Secure" in answer.headers["set-cookie"]
        assert answer.headers["strict-transport-security"]
        assert SHOWN in browser.get("/topics").text
        assert browser.get("/topics", Host="evil.example").status == 421
        with pytest.raises((OSError, http.client.HTTPException)):
            Browser(f"localhost:{port}").get("/login")
        # A connection that shakes no hands holds nobody up.
        with socket.create_connection(("127.0.0.1", int(port))):
            assert browser.get("/topics").status == 200


async def test_a_login_that_finds_no_room_leaves_no_connection(sasl_node: SaslNode) -> None:
    sessions = Sessions(
        ConsoleSettings(
            bootstrap_servers=sasl_node.sasl_address, security_protocol="SASL_PLAINTEXT"
        )
    )
    for _ in range(SESSIONS_MAX):
        other = sessions._visitor("other", None)
        other.ends_at = time.time() + 60
        sessions._keep(other)
    with pytest.raises(TooManySessions):
        await sessions.log_in(USER, PASSWORD, "SCRAM-SHA-512")
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await sessions.close()
