"""MiniStack: S3, DynamoDB and more of AWS in one process, for tests only."""

from __future__ import annotations

import dataclasses

from tools.venv_server import VenvServer

VERSION = "1.5.33"  # young: exactly this one is tried
SAM_TRANSLATOR_VERSION = "1.115.0"  # AWS's own; without it MiniStack deploys no SAM template

_SERVER = VenvServer(
    name="ministack",
    version=f"{VERSION}-{SAM_TRANSLATOR_VERSION}",
    requirements=(f"ministack=={VERSION}", f"aws-sam-translator=={SAM_TRANSLATOR_VERSION}"),
    command=("ministack",),
    environment={"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": "{port}"},
)
install = _SERVER.install
serve = _SERVER.serve

# Every caller may do what its policies allow, and no more. Root's access key is «test».
serve_with_iam = dataclasses.replace(
    _SERVER, environment={**_SERVER.environment, "AUTH": "true"}
).serve
