"""SaslHandshake and SaslAuthenticate. Source: KIP-43, KIP-152, KIP-368.

On a session that need not authenticate both are answered with ILLEGAL_SASL_STATE. A refusal is sent
late, so that passwords cannot be tried fast on one connection, and is the last answer.
"""

from __future__ import annotations

import asyncio
import datetime

from kio.schema.sasl_authenticate.v2 import request as authenticate_request
from kio.schema.sasl_authenticate.v2 import response as authenticate_response
from kio.schema.sasl_handshake.v1 import request as handshake_request
from kio.schema.sasl_handshake.v1 import response as handshake_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import AuthenticationFailed, ErrorCode, UnsupportedSaslMechanism

from tidelog_node.answers import CloseConnection
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build

HEADERS_FROM = 1  # from this version of SaslHandshake on, tokens come in SaslAuthenticate
_OUT_OF_PLACE = "SaslAuthenticate request received after successful authentication"


class SaslHandlers:
    """Passes mechanisms and tokens to the session's ``Authentication``."""

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.SASL_HANDSHAKE, 0, 1, self.shake_hands),
            Route(ApiKey.SASL_AUTHENTICATE, 0, 2, self.authenticate),
        ]

    async def shake_hands(
        self, request: handshake_request.SaslHandshakeRequest, context: RequestContext
    ) -> handshake_response.SaslHandshakeResponse:
        """Answer SaslHandshake."""
        authentication = context.session.authentication
        has_headers = context.api_version >= HEADERS_FROM
        if authentication is None or not authentication.may_begin(has_headers=has_headers):
            refusal = _handshake(ErrorCode.illegal_sasl_state)
            if authentication is None or authentication.is_done:
                return refusal
            raise CloseConnection(
                "SaslHandshake instead of a token", is_expected=True, last_response=refusal
            )
        rules = authentication.rules
        try:
            authentication.begin(request.mechanism, has_headers=has_headers)
        except UnsupportedSaslMechanism as error:
            await asyncio.sleep(rules.failure_delay_seconds)
            raise CloseConnection(
                str(error),
                is_expected=True,
                last_response=_handshake(error.code, rules.mechanisms),
            ) from error
        return _handshake(ErrorCode.none, rules.mechanisms)

    async def authenticate(
        self, request: authenticate_request.SaslAuthenticateRequest, context: RequestContext
    ) -> authenticate_response.SaslAuthenticateResponse:
        """Answer SaslAuthenticate."""
        authentication = context.session.authentication
        if authentication is None or not authentication.is_under_way:
            return _authenticated(ErrorCode.illegal_sasl_state, message=_OUT_OF_PLACE)
        try:
            token = await authentication.answer(bytes(request.auth_bytes))
        except AuthenticationFailed as failed:
            await asyncio.sleep(authentication.rules.failure_delay_seconds)
            raise CloseConnection(
                f"authentication failed: {failed.reason or failed}",
                is_expected=True,
                last_response=_authenticated(failed.code, message=str(failed)),
            ) from failed
        return _authenticated(ErrorCode.none, token=token, session_ms=authentication.session_ms)


def _handshake(
    error_code: ErrorCode, mechanisms: tuple[str, ...] = ()
) -> handshake_response.SaslHandshakeResponse:
    return build(
        handshake_response.SaslHandshakeResponse, error_code=error_code, mechanisms=mechanisms
    )


def _authenticated(
    error_code: ErrorCode, *, message: str = "", token: bytes = b"", session_ms: int = 0
) -> authenticate_response.SaslAuthenticateResponse:
    return build(
        authenticate_response.SaslAuthenticateResponse,
        error_code=error_code,
        error_message=message,
        auth_bytes=token,
        session_lifetime=datetime.timedelta(milliseconds=session_ms),
    )
