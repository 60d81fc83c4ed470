"""Logging in with a user of the cluster, and out."""

from __future__ import annotations

from aiohttp import web
from tidelog_core.errors import AuthenticationFailed, InvalidConfig, TidelogError

from tidelog_console.forms import StaleForm, require_own_form
from tidelog_console.sessions import MECHANISMS
from tidelog_console.web_context import SESSION_COOKIE, console_of, page, set_cookie

USER_LENGTH_MAX = 256
PASSWORD_LENGTH_MAX = 1_024
WRONG = "The user or the password is wrong."


async def show(request: web.Request) -> web.StreamResponse:
    """Show the form."""
    if not console_of(request).settings.asks_to_log_in:
        return web.HTTPSeeOther("/")
    return _form(request)


async def log_in(request: web.Request) -> web.StreamResponse:
    """Begin a session."""
    console = console_of(request)
    if not console.settings.asks_to_log_in:
        return web.HTTPSeeOther("/")
    try:
        form = await require_own_form(request)
    except StaleForm as error:
        return _form(request, f"{error}: try again", 403)
    user, password = str(form.get("user", "")), str(form.get("password", ""))
    mechanism = str(form.get("mechanism", MECHANISMS[0]))
    if (
        not 0 < len(user) <= USER_LENGTH_MAX
        or len(password) > PASSWORD_LENGTH_MAX
        or mechanism not in MECHANISMS
    ):
        return _form(request, WRONG, 401)
    try:
        cookie = await console.sessions.log_in(user, password, mechanism)
    except (AuthenticationFailed, InvalidConfig):
        return _form(request, WRONG, 401, user)
    except TidelogError as error:
        return _form(request, f"{error}{'; ' + error.hint if error.hint else ''}", 503, user)
    await console.sessions.log_out(request.cookies.get(SESSION_COOKIE))
    answer = web.Response(status=303, headers={"Location": "/"})
    set_cookie(console, answer, SESSION_COOKIE, cookie)
    return answer


async def log_out(request: web.Request) -> web.StreamResponse:
    """End the session."""
    console = console_of(request)
    await require_own_form(request)
    await console.sessions.log_out(request.cookies.get(SESSION_COOKIE))
    answer = web.Response(status=303, headers={"Location": "/login"})
    answer.del_cookie(SESSION_COOKIE, path="/", httponly=True, samesite="Strict")
    return answer


def _form(
    request: web.Request, problem: str = "", status: int = 200, user: str = ""
) -> web.Response:
    return page(
        request,
        "login.html",
        status,
        title="Log in",
        problem=problem,
        given_user=user,
        mechanisms=MECHANISMS,
    )


ROUTES = [
    web.get("/login", show),
    web.post("/login", log_in),
    web.post("/logout", log_out),
]
