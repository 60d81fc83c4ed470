"""``tidelog token`` commands: delegation tokens, with which programs log in as a user."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.clients import administer
from tidelog_cli.failures import CommandFailed
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog_cli.output import print_json, print_table
from tidelog_cli.security.acl_options import require_principal

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog.administering.results import DelegationToken

DEFAULT_MS = -1

TokenId = Annotated[str, typer.Argument(metavar="TOKEN_ID", help="The token's id.")]
Owner = Annotated[
    str | None,
    typer.Option(
        "--owner-principal",
        metavar="KIND:NAME",
        help="The user whom the token logs in, such as User:alice; by default yourself.",
    ),
]
Owners = Annotated[
    list[str] | None,
    typer.Option(
        "--owner-principal",
        metavar="KIND:NAME",
        help="Only tokens that this user owns, made or may renew; may be repeated.",
    ),
]
Renewers = Annotated[
    list[str] | None,
    typer.Option(
        "--renewer-principal",
        metavar="KIND:NAME",
        help="A user who may renew the token beside its owner; may be repeated.",
    ),
]
MaxLifetime = Annotated[
    int,
    typer.Option(
        "--max-life-time-period",
        metavar="MS",
        help="Milliseconds until it cannot be renewed any more; -1: as the nodes' settings say.",
    ),
]
RenewPeriod = Annotated[
    int,
    typer.Option(
        "--renew-time-period",
        metavar="MS",
        help="Milliseconds from now on; -1: as the nodes' settings say.",
    ),
]
ExpiryPeriod = Annotated[
    int,
    typer.Option(
        "--expiry-time-period",
        metavar="MS",
        help="Milliseconds from now on; -1: the token is removed now.",
    ),
]
ShowsHmac = Annotated[
    bool, typer.Option("--hmac", help="Also print the HMACs: with one anybody can log in.")
]


def create(
    *,
    owner: Owner = None,
    renewer: Renewers = None,
    max_lifetime: MaxLifetime = DEFAULT_MS,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Create a token and print it with its HMAC, the secret to log in with.

    A client logs in by SCRAM with the id as user, the HMAC as password, and tokenauth=true.
    """
    for option, principals in (("--owner-principal", [owner]), ("--renewer-principal", renewer)):
        _require_principals(option, [one for one in principals or () if one is not None])
    token = administer(
        bootstrap,
        lambda admin: admin.create_delegation_token(
            owner=owner, renewers=renewer or (), max_lifetime_ms=max_lifetime
        ),
    )
    if json:
        print_json(_document(token, shows_hmac=True))
        return
    for name, value in _document(token, shows_hmac=True).items():
        shown = ", ".join(value) if isinstance(value, list) else value
        print(f"{name.replace('_', ' ')}: {shown}")


def list_(
    *,
    owner: Owners = None,
    hmac: ShowsHmac = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the tokens that you own, made or may renew, and those that ACLs let you see."""
    _require_principals("--owner-principal", owner or [])
    tokens = administer(bootstrap, lambda admin: admin.describe_delegation_tokens(owner))
    documents = [_document(token, shows_hmac=hmac) for token in tokens]
    if json:
        print_json(documents)
        return
    columns = ["token_id", "owner", "requester", "renewers", "issued", "expires", "ends"]
    columns += ["hmac"] if hmac else []
    rows = [
        [", ".join(one) if isinstance(one := document[name], list) else one for name in columns]
        for document in documents
    ]
    print_table([name.replace("_", " ") for name in columns], rows)


def renew(
    token_id: TokenId,
    *,
    period: RenewPeriod = DEFAULT_MS,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Have TOKEN_ID expire later. Its owner and its renewers may."""

    async def run(admin: Admin) -> int:
        token = await _found(admin, token_id)
        return await admin.renew_delegation_token(token.hmac, period_ms=period)

    _print_expiry(token_id, administer(bootstrap, run), is_json=json)


def expire(
    token_id: TokenId,
    *,
    period: ExpiryPeriod = -1,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Remove TOKEN_ID, or have it expire soon. That ends the connections by it, too."""

    async def run(admin: Admin) -> int:
        token = await _found(admin, token_id)
        return await admin.expire_delegation_token(token.hmac, period_ms=period)

    expires_ms = administer(bootstrap, run)
    if period < 0 and not json:
        print(f"token {token_id} removed")
        return
    _print_expiry(token_id, expires_ms, is_json=json)


async def _found(admin: Admin, token_id: str) -> DelegationToken:
    """Return the token: requests name it by its HMAC, which is not for a command line."""
    tokens = await admin.describe_delegation_tokens()
    for token in tokens:
        if token.token_id == token_id:
            return token
    raise CommandFailed(f"there is no token {token_id} that you may see: `tidelog token list`")


def _require_principals(option: str, principals: list[str]) -> None:
    for principal in principals:
        require_principal(option, principal)


def _print_expiry(token_id: str, expires_ms: int, *, is_json: bool) -> None:
    if is_json:
        print_json({"token_id": token_id, "expires": _time(expires_ms)})
    else:
        print(f"token {token_id} expires at {_time(expires_ms)}")


def _document(token: DelegationToken, *, shows_hmac: bool) -> dict[str, object]:
    document: dict[str, object] = {
        "token_id": token.token_id,
        "owner": token.owner,
        "requester": token.requester,
        "renewers": list(token.renewers),
        "issued": _time(token.issued_ms),
        "expires": _time(token.expires_ms),
        "ends": _time(token.max_ms),
    }
    if shows_hmac:
        document["hmac"] = token.password
    return document


def _time(time_ms: int) -> str:
    """Return the time in UTC, by ISO 8601."""
    return datetime.datetime.fromtimestamp(time_ms // 1000, datetime.UTC).isoformat()
