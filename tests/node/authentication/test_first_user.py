"""The first user of a node without open listeners."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog import Admin, Sasl
from tidelog_core.errors import AuthenticationFailed

from tests.support.node_process import NodeProcess
from tools.ports import free_port


def closed_node(folder: Path, **config: str) -> NodeProcess:
    port = free_port()
    return NodeProcess(
        folder,
        port=port,
        config={
            "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
            "bootstrap.admin.user": "admin",
            **{name.replace("_", "."): value for name, value in config.items()},
        },
    )


def login(node: NodeProcess, password: str) -> Admin:
    return Admin(node.address, sasl=Sasl("SCRAM-SHA-512", "admin", password))


async def test_it_is_stored_once_and_keeps_a_password_that_was_changed_since(
    tmp_path: Path,
) -> None:
    location = tmp_path / "password"
    location.write_text(" first password\n")
    node = closed_node(tmp_path / "node", bootstrap_admin_password_location=str(location))
    with node:
        async with login(node, "first password") as admin:
            await admin.list_topics()
        location.write_text("second")
        node.stop()
        node.start()
        async with login(node, "first password") as admin:
            await admin.list_topics()
        with pytest.raises(AuthenticationFailed):
            await login(node, "second").start()
    assert node.log.count("first user stored") == 1
    assert "first password" not in node.log


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "cannot read"),
        (" \n", "there is no password in"),
        ("", "needs bootstrap.admin.password.location"),
    ],
)
def test_a_node_without_its_password_does_not_start(
    text: str | None, problem: str, tmp_path: Path
) -> None:
    location = tmp_path / "password"
    if text:
        location.write_text(text)
    given = "" if text == "" else str(location)
    node = closed_node(tmp_path / "node", bootstrap_admin_password_location=given)
    with pytest.raises(RuntimeError, match="ended before it was ready"), node:
        pass
    node.wait_logged(problem)
