"""MiniStack: S3, DynamoDB and more of AWS in one process, for tests only."""

from __future__ import annotations

from tools.venv_server import VenvServer

VERSION = "1.5.33"  # young: exactly this one is tried

_SERVER = VenvServer(
    name="ministack",
    version=VERSION,
    requirements=(f"ministack=={VERSION}",),
    command=("ministack",),
    environment={"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": "{port}"},
)
install = _SERVER.install
serve = _SERVER.serve
