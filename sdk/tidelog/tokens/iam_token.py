"""Tokens for an AWS role: STS signs who the caller is, and nodes verify it like any other token.

The account must have outbound identity federation on, and the role the right
``sts:GetWebIdentityToken``. The token's issuer is the account's, its ``sub`` the role's ARN.
``aws_models`` has the operation for versions of botocore that do not know it.
Source: https://docs.aws.amazon.com/STS/latest/APIReference/API_GetWebIdentityToken.html
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidelog.errors import AuthenticationFailed, InvalidConfig, TokenNotFetched
from tidelog.tokens.bearer_token import BearerToken, is_token, one_line
from tidelog.tokens.cached_tokens import shared_tokens

ALGORITHMS = ("ES384", "RS256")
DURATION_SECONDS = range(60, 3601)
DEFAULT_DURATION_SECONDS = 300
AUDIENCE_SIZE_MAX = 1_000
CONNECT_SECONDS_MAX = 5
READ_SECONDS_MAX = 10
ATTEMPTS_MAX = 3
# Codes of STS begin with these words.
_DISABLED = "OutboundWebIdentityFederationDisabled"
_BUSY_STATUS_MIN = 500
_THROTTLED = ("Throttling", "RequestLimitExceeded")
_ENABLE = "`aws iam enable-outbound-web-identity-federation` enables it for the account"
_ALLOW = "the role needs the right sts:GetWebIdentityToken"
_NEEDED = "the process needs credentials and a region of AWS, as for boto3"
_MODELS = Path(__file__).parent / "aws_models"


@dataclass(frozen=True, slots=True, kw_only=True)
class IamToken:
    """Logs in as the role of this process: ``SaslToken(IamToken(audience="tidelog"))``.

    Credentials and region are found as boto3 finds them. The token is kept until shortly before it
    expires.
    """

    audience: str
    duration_seconds: int = DEFAULT_DURATION_SECONDS
    algorithm: str = "ES384"
    region: str | None = None  # None: that of the environment or the profile
    endpoint: str | None = None  # None: that of the region

    def problems(self) -> list[str]:
        """Return the problems, one sentence each."""
        found = []
        if not 0 < len(self.audience) <= AUDIENCE_SIZE_MAX:
            found.append(f"the audience must have 1 to {AUDIENCE_SIZE_MAX} characters")
        if self.duration_seconds not in DURATION_SECONDS:
            least, most = DURATION_SECONDS[0], DURATION_SECONDS[-1]
            found.append(f"the duration must be {least} to {most} seconds")
        if self.algorithm not in ALGORITHMS:
            found.append(f"the algorithm must be one of {', '.join(ALGORITHMS)}")
        return found

    async def __call__(self) -> str:
        """Return a token that has not expired. Raises what ``fetch`` raises."""
        return await shared_tokens(self).token()

    def fetch(self) -> BearerToken:
        """Return a new token; blocks. Raises ``AuthenticationFailed``, ``TokenNotFetched``."""
        problems = self.problems()
        if problems:
            raise InvalidConfig(problems)
        try:
            from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
        except ImportError:
            raise InvalidConfig(["tokens of AWS need boto3: pip install 'tidelog[aws]'"]) from None
        try:
            answer = self.client().get_web_identity_token(
                Audience=[self.audience],
                DurationSeconds=self.duration_seconds,
                SigningAlgorithm=self.algorithm,
            )
        except ClientError as error:
            raise _failed(error.response) from None
        except HTTPClientError as error:
            raise _away(one_line(error)) from None
        except BotoCoreError as error:
            raise _refused(one_line(error), hint=_NEEDED) from None
        token = answer.get("WebIdentityToken", "")
        if not is_token(token):
            raise AuthenticationFailed("STS answers without a token")
        expiration = answer.get("Expiration")
        return BearerToken(token, None if expiration is None else expiration.timestamp())

    def client(self) -> Any:
        """Return botocore's client of STS. Raises ``BotoCoreError``."""
        from botocore.config import Config
        from botocore.session import get_session

        session = get_session()
        session.get_component("data_loader").search_paths.append(str(_MODELS))
        # The global endpoint does not have the operation.
        session.set_config_variable("sts_regional_endpoints", "regional")
        config = Config(
            connect_timeout=CONNECT_SECONDS_MAX,
            read_timeout=READ_SECONDS_MAX,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
        )
        return session.create_client(
            "sts", region_name=self.region, endpoint_url=self.endpoint, config=config
        )


def _failed(response: Mapping[str, Any]) -> AuthenticationFailed | TokenNotFetched:
    """Return the error for an answer of STS."""
    said = response.get("Error", {})
    code = str(said.get("Code", ""))
    text = one_line(f"{code}: {said.get('Message', '')}")
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code.startswith(_THROTTLED) or status >= _BUSY_STATUS_MIN:
        return _away(text)
    return _refused(text, hint=_ENABLE if code.startswith(_DISABLED) else _ALLOW)


def _refused(reason: str, *, hint: str) -> AuthenticationFailed:
    failed = AuthenticationFailed(f"no token from STS: {reason}")
    failed.hint = hint
    return failed


def _away(reason: str) -> TokenNotFetched:
    failed = TokenNotFetched(f"no token from STS: {reason}")
    failed.hint = "check that this machine reaches STS in its region"
    return failed
