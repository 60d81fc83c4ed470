"""``tidelog iam-token``: a token of STS for the role of AWS that this process has."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from tidelog_cli.options import Json
from tidelog_cli.output import print_json


def iam_token(
    *,
    audience: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="For whom it is: sasl.oauthbearer.expected.audience of the nodes."
        ),
    ] = "tidelog",
    duration: Annotated[
        int, typer.Option(metavar="SECONDS", help="How long it is valid: 60 to 3600.")
    ] = 300,
    algorithm: Annotated[str, typer.Option(help="ES384 or RS256.")] = "ES384",
    region: Annotated[
        str | None,
        typer.Option(help="The region of STS; by default as for boto3.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Print a token of AWS for this role, with which clients log in (OAUTHBEARER).

    The account needs outbound identity federation, and the role sts:GetWebIdentityToken. Clients
    that log in again need a new token each time: sasl.oauthbearer.metadata.authentication.type.
    """
    from tidelog.errors import InvalidConfig
    from tidelog.tokens.iam_token import IamToken

    source = IamToken(
        audience=audience, duration_seconds=duration, algorithm=algorithm, region=region
    )
    problems = source.problems()
    if problems:
        raise InvalidConfig(problems)
    token = source.fetch()
    if not json:
        print(token.text)
        return
    expiry = token.expires_at
    expires_at = None if expiry is None else datetime.fromtimestamp(expiry, UTC).isoformat()
    print_json({"token": token.text, "expires_at": expires_at})
