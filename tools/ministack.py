"""MiniStack: an emulator of S3, DynamoDB and other AWS services, for tests only."""

from __future__ import annotations

import dataclasses
from contextlib import AbstractContextManager
from pathlib import Path

from tools import lambda_python
from tools.venv_server import VenvServer

VERSION = "1.5.33"  # a young project: only this version is tested
SAM_TRANSLATOR_VERSION = "1.115.0"  # AWS's own; without it MiniStack deploys no SAM template

_WITH_EMR = Path(__file__).with_name("ministack_with_emr.py")
_SERVER = VenvServer(
    name="ministack",
    version=f"{VERSION}-{SAM_TRANSLATOR_VERSION}",
    requirements=(f"ministack=={VERSION}", f"aws-sam-translator=={SAM_TRANSLATOR_VERSION}"),
    arguments=("-m", "ministack"),
    environment={"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": "{port}"},
)
serve = _SERVER.serve


def install() -> None:
    """Make ``serve`` and ``serve_with_iam`` work."""
    _SERVER.install()
    _cloud().install()


def serve_with_iam(
    directory: Path, *, node_pem: Path, authority: Path, emr_url: str
) -> AbstractContextManager[str]:
    """Run an empty server that speaks TLS, and enforces the IAM policies of its callers.

    ``node_pem`` has its key and certificate, ``authority`` the one that functions trust. They reach
    EMR Serverless at ``emr_url``. Root's access key is «test». Functions run on
    ``lambda_python.closest``. Raises ``ToolAbsent``.
    """
    tls = {
        "USE_SSL": "1",
        "MINISTACK_SSL_CERT": str(node_pem),
        "MINISTACK_SSL_KEY": str(node_pem),
        # A function's process inherits them.
        "AWS_CA_BUNDLE": str(authority),
        "SSL_CERT_FILE": str(authority),
        "AWS_ENDPOINT_URL_EMR_SERVERLESS": emr_url,
    }
    cloud = _cloud()
    server = dataclasses.replace(
        cloud,
        # Not with its folder in the path, where ``ministack`` is this module.
        arguments=("-P", str(_WITH_EMR)),
        scheme="https",
        environment={**cloud.environment, **tls},
        # Its end waits half a minute for TLS connections that functions leave open.
        stop_seconds_max=2.0,
    )
    return server.serve(directory)


def _cloud() -> VenvServer:
    python = lambda_python.closest()
    return dataclasses.replace(
        _SERVER,
        name=f"ministack-python{python.minor}",
        interpreter=python.program,  # the server runs functions on its own interpreter
        environment={**_SERVER.environment, "AUTH": "true"},
    )
