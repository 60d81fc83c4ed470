"""The admin API on this machine: its token, and the principal of its callers."""

from __future__ import annotations

import http.client
import subprocess
import sys
from pathlib import Path

from tests.support.admin_calls import new_cluster
from tests.support.local_admin import local_admin

ACLS = {
    "TIDELOG_CONFIG_AUTHORIZER_CLASS_NAME": "tidelog.acl",
    "TIDELOG_CONFIG_SUPER_USERS": "User:admin",
}


def test_callers_need_the_token_and_have_the_rights_of_the_principal(tmp_path: Path) -> None:
    with new_cluster(tmp_path):
        pass
    stores = f"sqlite://{tmp_path}/metadata.db", f"file://{tmp_path}/objects"
    token = tmp_path / "token"
    token.write_text("let me in\n")
    options = "--principal", "User:admin", "--token-file", str(token)
    with local_admin(*stores, *options, **ACLS) as admin:
        for wrong in ("", "let me", "let me in please"):
            admin.token = wrong
            status, problem = admin("GET", "/topics")
            assert (status, problem["status"]) == (401, 401)
            assert "Bearer" in problem["detail"]
        admin.token = "let me in"
        assert admin.done("POST", "/topics", {"name": "t"})["is_applied"]
    with local_admin(*stores, **ACLS) as anonymous:
        status, problem = anonymous("DELETE", "/topics/t")
        assert (status, problem["error"]) == (403, "TOPIC_AUTHORIZATION_FAILED")
        assert "User:ANONYMOUS may not DELETE the topic t" in problem["detail"]
        port = int(anonymous.url.rpartition(":")[2])
        for host in ("evil.example", f"localhost.evil.example:{port}", "", f"evil:{port}:80"):
            assert status_for(port, host) == 403, host
        for host in (f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "LOCALHOST"):
            assert status_for(port, host) == 200, host


def status_for(port: int, host: str) -> int:
    """Return the status of the answer to a request that names this host."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/topics", headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


def test_wrong_options_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    stores = ("--metadata", f"sqlite://{tmp_path}/m.db", "--objects", f"file://{tmp_path}/o")
    for options, said in (
        (("--principal", "admin"), "such as User:admin"),
        (("--token-file", str(empty)), "has no token"),
        (("--token-file", str(tmp_path / "none")), "No such file"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "tidelog_functions.admin.local", *stores, *options],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
