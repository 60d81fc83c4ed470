"""Handles a client on a listener with SASL until it has logged in, before a ``Connection``.

A login is one task. It receives one frame at a time and reads only the API of a request. The
dispatch table parses and answers the few requests that are allowed. The size of the frames
(``LoginFrames``), their number (``Authentication``) and the time are bounded.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import AuthenticationFailed
from tidelog_core.model import FileSlice

from tidelog_node.answers import CloseConnection, ControlReply, Reply
from tidelog_node.authentication.authentication import (
    Authentication,
    AuthenticationRules,
    Logins,
)
from tidelog_node.authentication.exchanges import Mechanisms
from tidelog_node.authentication.expiring_session import ExpiringSession
from tidelog_node.authentication.login_frames import LoginFrames, LoginMemory
from tidelog_node.connections.frame_receiver import FrameHandler
from tidelog_node.connections.transport import Transport
from tidelog_node.requests.session import Session

logger = logging.getLogger(__name__)

LOGIN_SECONDS_MAX = 30.0  # from the connection's beginning, with its TLS handshake
LAST_ANSWER_SECONDS_MAX = 1.0
LINGER_SECONDS_MAX = 0.1  # after a refusal, for the client to close the connection
# The frames of ApiVersions and SaslHandshake: a session keeps the client's id and software.
REQUEST_BYTES_MAX = 8_192
REQUEST_BYTES_MIN = 8  # api key, version, correlation id
_API_KEY = struct.Struct(">h")
_SIZE = struct.Struct(">i")
_ERROR_OF_VERSIONS = struct.Struct(">8xh")  # after the answer's size and correlation id


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginService:
    """The shared state of a node's logins."""

    rules: Mapping[str, AuthenticationRules]  # of the listeners with SASL, by their names
    dispatch: FrameHandler
    mechanisms: Mechanisms
    logins: Logins
    now: Callable[[], float]  # steady, in seconds
    seconds_max: float = LOGIN_SECONDS_MAX
    memory: LoginMemory = field(default_factory=LoginMemory)

    def begin(self, transport: Transport, session: Session) -> Login | None:
        """Return the login of a connection that was just accepted.

        ``None`` on a listener without SASL.
        """
        rules = self.rules.get(session.listener)
        if rules is None:
            return None
        authentication = Authentication(
            session, rules, self.mechanisms, logins=self.logins, now=self.now
        )
        session.authentication = authentication
        return Login(self, authentication, transport, session)


class Login:
    """The log-in of one client."""

    def __init__(
        self,
        service: LoginService,
        authentication: Authentication,
        transport: Transport,
        session: Session,
    ) -> None:
        self._service = service
        self._authentication = authentication
        self._transport = transport
        self._session = session
        self._frames = LoginFrames(
            transport, service.memory, bytes_max=authentication.rules.token_bytes_max
        )

    async def run(self) -> FrameHandler | None:
        """Return the handler for the client's requests, ``None`` if it has not logged in.

        In the second case, and if this is cancelled, the transport and the session are closed.
        """
        is_known = False
        try:
            async with asyncio.timeout(self._service.seconds_max):
                is_known = await self._log_in()
        except TimeoutError:
            self._refuse(f"no login within {self._service.seconds_max:.0f} s")
        except CloseConnection as closing:
            if not closing.is_expected:
                self._refuse(closing.reason)
            await self._send_last(closing.last_answer)
        except OSError as error:
            logger.debug("client left before it had logged in", extra={"reason": str(error)})
        except Exception:
            logger.exception("login failed")
        finally:
            self._frames.close()
            if not is_known:
                self.close()
        return self._handler() if is_known else None

    def close(self) -> None:
        """Close the transport and the session of a client that is not logged in."""
        self._transport.close()
        self._session.closed()

    async def _log_in(self) -> bool:
        """Return whether the client has logged in; it may have left."""
        authentication = self._authentication
        while not authentication.is_done:
            frame = await self._frames.receive()
            if frame is None:
                return False
            if authentication.takes_raw_tokens:
                answer = await self._answer_raw(frame)
            else:
                answer = await self._answer(frame)
            await self._frames.send(answer)
        return True

    async def _answer(self, frame: bytearray) -> bytes:
        """Return the answer to a request, with its size."""
        if len(frame) < REQUEST_BYTES_MIN:
            raise CloseConnection(f"a request of {len(frame)} bytes before authentication")
        (api_key,) = _API_KEY.unpack_from(frame)
        self._authentication.admit(api_key)
        if len(frame) > REQUEST_BYTES_MAX and not self._authentication.is_under_way:
            raise CloseConnection(
                f"a request of API {api_key} of {len(frame)} bytes before authentication, "
                f"allowed are {REQUEST_BYTES_MAX}"
            )
        request = self._service.dispatch(memoryview(frame), self._session)
        assert isinstance(request, ControlReply), "none of these APIs is hot"
        data = _joined(await request.call())
        if api_key == ApiKey.API_VERSIONS and _ERROR_OF_VERSIONS.unpack_from(data) == (0,):
            self._authentication.note_versions()
        return data

    async def _answer_raw(self, frame: bytearray) -> bytes:
        """Return the answer to a token without headers. A refusal has none."""
        self._authentication.count_round()
        try:
            token = await self._authentication.answer(bytes(frame))
        except AuthenticationFailed as failed:
            await asyncio.sleep(self._authentication.rules.failure_delay_seconds)
            raise CloseConnection(str(failed), is_expected=True) from failed
        return _SIZE.pack(len(token)) + token

    async def _send_last(self, answer: Reply) -> None:
        """Send the answer that comes before the end, unless the client does not take it.

        Most clients then close the connection. kafka-python overlooks an answer that comes
        together with the node's own end of it.
        """
        if not answer:
            return
        with suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(LAST_ANSWER_SECONDS_MAX):
                await self._frames.send(_joined(answer))
            async with asyncio.timeout(LINGER_SECONDS_MAX):
                await self._frames.discard()

    def _handler(self) -> FrameHandler:
        if not self._authentication.session_ms:
            self._session.authentication = None
            return self._service.dispatch
        return ExpiringSession(self._authentication, self._service.dispatch, self._service.now)

    def _refuse(self, reason: str) -> None:
        self._service.logins.refused(self._session, reason)


def _joined(reply: Reply) -> bytes:
    """Return an answer that has no file slices."""
    return b"".join(bytes(part) for part in reply if not isinstance(part, FileSlice))
