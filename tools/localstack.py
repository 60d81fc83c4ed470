"""LocalStack: a second emulator of S3 and its events, for tests only."""

from __future__ import annotations

from tools.venv_server import VenvServer

VERSION = "4.13.1"  # the last release that runs on Python 3.11 without an account

_SERVER = VenvServer(
    name="localstack",
    version=VERSION,
    requirements=(f"localstack-core[runtime]=={VERSION}", "cbor2<6"),
    arguments=("-m", "localstack.runtime.main"),
    environment={
        "GATEWAY_LISTEN": "127.0.0.1:{port}",
        "DNS_ADDRESS": "0",
        "DISABLE_EVENTS": "1",
        "S3_SKIP_KMS_KEY_VALIDATION": "0",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
    },
    as_of="2026-03-06",  # later releases of its dependencies break it
)
install = _SERVER.install
serve = _SERVER.serve
