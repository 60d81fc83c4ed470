"""Forms that change something: they are taken from the console's own pages only."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from tidelog_core.errors import TidelogError

from tidelog_console.web_context import console_of, has_form_token


class StaleForm(TidelogError):
    """The form was not made by this console for this browser."""

    hint = "load the page again, and send the form again"


async def require_own_form(request: web.Request) -> Mapping[str, object]:
    """Return the form. Raises ``StaleForm`` unless it has this console's token and origin."""
    try:
        form = await request.post()
    except (LookupError, ValueError, web.RequestPayloadError) as error:
        raise StaleForm("the form cannot be read") from error
    guard = console_of(request).guard
    is_own = guard.is_own_origin(request.headers.get("Origin"), request.headers.get("Host", ""))
    if not (is_own and has_form_token(request, form.get("token"))):
        raise StaleForm("the form was too old, or not from this console")
    return form
