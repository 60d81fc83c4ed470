"""The services that a console's handlers share, and the facts of a request."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from tidelog_core.software_version import tidelog_version

from tidelog_console import formats
from tidelog_console.guard import PAGE_CACHE, Guard, is_signed, sign
from tidelog_console.job_registry import JobRegistry
from tidelog_console.node_pages import NodePages
from tidelog_console.sessions import Sessions, Visitor
from tidelog_console.settings import ConsoleSettings
from tidelog_console.static_files import FILES
from tidelog_console.stores import Stores

TEMPLATES = Path(__file__).parent / "templates"
NONCE_BYTES = 18
_FORM = "form"
# Names of cookies. Browsers send them to every port of the host.
SESSION_COOKIE = "tidelog_console_session"
FORM_COOKIE = "tidelog_console_form"  # that forms are tied to

# Menu: key of the shortcut after «g», path, name.
MENU = (
    ("c", "/", "Cluster"),
    ("t", "/topics", "Topics"),
    ("o", "/groups", "Groups"),
    ("m", "/tier", "Tier map"),
    ("$", "/money", "Money"),
    ("j", "/jobs", "Jobs"),
    ("f", "/faults", "Faults"),
)


@dataclass(slots=True)
class Console:
    """One console."""

    settings: ConsoleSettings
    guard: Guard
    sessions: Sessions
    stores: Stores
    node_pages: NodePages
    jobs: JobRegistry
    templates: Environment
    version: str
    stream_count: int = 0

    @classmethod
    def of(cls, settings: ConsoleSettings) -> Console:
        """Return a console that is not started."""
        templates = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,  # a new version is a new process
        )
        templates.filters |= formats.FILTERS
        templates.globals["static"] = {name: file.url for name, file in FILES.items()}
        return cls(
            settings,
            Guard.of(settings),
            Sessions(settings),
            Stores(settings.metadata_url, settings.objects_url, settings.node_config),
            NodePages(settings.node_http),
            JobRegistry(),
            templates,
            tidelog_version(),
        )

    async def close(self) -> None:
        """Release everything."""
        await self.jobs.close()
        await self.sessions.close()
        await self.node_pages.close()
        await self.stores.close()


CONSOLE = web.AppKey("console", Console)
VISITOR = "visitor"


def console_of(request: web.Request) -> Console:
    """Return the console that serves the request."""
    return request.app[CONSOLE]


def visitor_of(request: web.Request) -> Visitor:
    """Return the visitor who sent the request. Only behind the check of the session."""
    visitor: Visitor = request[VISITOR]
    return visitor


def page(request: web.Request, template: str, status: int = 200, **values: Any) -> web.Response:
    """Return a page, with what every page needs."""
    console = console_of(request)
    nonce = request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(NONCE_BYTES)
    visitor: Visitor | None = request.get(VISITOR)
    body = console.templates.get_template(template).render(
        menu=MENU,
        path=request.path,
        version=console.version,
        user=None if visitor is None else visitor.name,
        token=sign(console.sessions.secret, _FORM, nonce),
        **values,
    )
    answer = web.Response(text=body, status=status, content_type="text/html", charset="utf-8")
    answer.headers["Cache-Control"] = PAGE_CACHE
    if request.cookies.get(FORM_COOKIE) != nonce:
        set_cookie(console, answer, FORM_COOKIE, nonce)
    answer.enable_compression()
    return answer


def set_cookie(console: Console, answer: web.StreamResponse, name: str, value: str) -> None:
    """Set a cookie that only the console gets, and only from its own pages."""
    answer.set_cookie(
        name,
        value,
        path="/",
        httponly=True,
        samesite="Strict",
        secure=console.settings.is_encrypted,
    )


def has_form_token(request: web.Request, token: object) -> bool:
    """Return whether a form has the token that this console gave to this browser."""
    console = console_of(request)
    nonce = request.cookies.get(FORM_COOKIE, "")
    if not nonce or not isinstance(token, str):
        return False
    return is_signed(console.sessions.secret, _FORM, nonce, token)
