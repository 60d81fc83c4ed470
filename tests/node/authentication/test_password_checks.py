"""The passwords of PLAIN are checked one at a time, and hosts take turns."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tidelog_core.errors import AuthenticationFailed
from tidelog_core.security.plain import PlainLogin
from tidelog_core.security.scram_credentials import ScramCredential, ScramMechanism
from tidelog_node.answers import CloseConnection
from tidelog_node.authentication.password_checks import CHECKS_OF_HOST_MAX, PasswordChecks

from tests.node.authentication.sasl_server import PASSWORD, USER, users_with
from tests.support.scram_users import Users
from tests.support.waiting import eventually_async


class WatchedUsers(Users):
    """Counts the checks that look for a user, and those that do at the same time."""

    def __init__(self, users: Users) -> None:
        super().__init__(users.users)
        self.may_go_on = threading.Event()
        self.running = self.most_running = 0

    def find(
        self, name: str, mechanism: ScramMechanism, *, is_token: bool
    ) -> ScramCredential | None:
        if threading.current_thread() is not threading.main_thread():
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.may_go_on.wait(60)
            self.running -= 1
        return super().find(name, mechanism, is_token=is_token)


@pytest.fixture
def users() -> Iterator[WatchedUsers]:
    """Return users whose checks wait for the test."""
    watched = WatchedUsers(users_with())
    yield watched
    watched.may_go_on.set()


async def test_checks_run_one_at_a_time_and_hosts_take_turns(users: WatchedUsers) -> None:
    order: list[str] = []
    with ThreadPoolExecutor(4) as executor:
        checks = PasswordChecks(lambda: users, executor)

        async def check(host: str, password: str) -> None:
            with contextlib.suppress(AuthenticationFailed):
                await checks.check(host, PlainLogin(USER, password))
            order.append(host)

        tasks = [asyncio.create_task(check("10.0.0.1", f"wrong-{n}")) for n in range(5)]
        tasks += [asyncio.create_task(check(f"10.0.0.{n}", PASSWORD)) for n in (2, 3)]
        await asyncio.sleep(0.05)
        users.may_go_on.set()
        await asyncio.gather(*tasks)
        assert users.most_running == 1
        # One of the first host's before each of the others', not all five.
        assert order.index("10.0.0.2") <= 2
        assert order.index("10.0.0.3") <= 3


async def test_clients_with_the_same_password_wait_for_one_check(users: WatchedUsers) -> None:
    with ThreadPoolExecutor(1) as executor:
        checks = PasswordChecks(lambda: users, executor)
        users.may_go_on.set()
        login = PlainLogin(USER, PASSWORD)
        await asyncio.gather(*(checks.check("10.0.0.1", login) for _ in range(50)))
        before = len(users.asked)
        await checks.check("10.0.0.9", login)
        # To look at the digest asks for the credential of each mechanism; a check would again.
        assert len(users.asked) - before == len(ScramMechanism)


async def test_checks_that_wait_are_bounded_for_each_host(users: WatchedUsers) -> None:
    with ThreadPoolExecutor(1) as executor:
        checks = PasswordChecks(lambda: users, executor)
        tasks = [
            asyncio.create_task(checks.check("10.0.0.1", PlainLogin(USER, f"wrong-{n}")))
            for n in range(CHECKS_OF_HOST_MAX)
        ]
        await asyncio.sleep(0.01)
        with pytest.raises(CloseConnection, match="too many"):
            await checks.check("10.0.0.1", PlainLogin(USER, "one more"))
        other = asyncio.create_task(checks.check("10.0.0.2", PlainLogin(USER, PASSWORD)))
        await asyncio.sleep(0.01)
        for task in tasks[1:]:
            task.cancel()
        users.may_go_on.set()
        await other
        await asyncio.gather(*tasks, return_exceptions=True)
        await eventually_async(lambda: not checks._waiting)
        await checks.check("10.0.0.1", PlainLogin(USER, PASSWORD))


async def test_a_client_that_leaves_does_not_let_two_checks_run(users: WatchedUsers) -> None:
    with ThreadPoolExecutor(2) as executor:
        checks = PasswordChecks(lambda: users, executor)
        first = asyncio.create_task(checks.check("10.0.0.1", PlainLogin(USER, "wrong")))
        await eventually_async(lambda: users.running == 1)
        second = asyncio.create_task(checks.check("10.0.0.2", PlainLogin(USER, PASSWORD)))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0.05)
        users.may_go_on.set()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        assert users.most_running == 1
