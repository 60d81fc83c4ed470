"""``tidelog debug bundle``: it has what helps, and no secret."""

from __future__ import annotations

import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tidelog_cli.administration import debug_bundle
from tidelog_cli.redaction import REMOVED, is_secret, redacted, redacted_text

from tests.support.command import called
from tools.ports import free_port

CANARY = "c4narY-5ecret"
SECRET_TEXTS = (
    f"sasl.password={CANARY}",
    f"password: {CANARY}",
    f'"password": "{CANARY}"',
    f'sasl.jaas.config=org.x.ScramLoginModule required username="a" password="{CANARY}";',
    f"sasl.jaas.config=org.x.ScramLoginModule required username=a password='{CANARY}';",
    f"connecting to https://user:{CANARY}@host/path",
    f"dynamodb://t?secret_access_key={CANARY}&region=eu",
    f"https://bucket/key?X-Amz-Signature={CANARY}&x=1",
    f"Authorization: Bearer {CANARY}",
    f"AWS_SECRET_ACCESS_KEY={CANARY}",
    f"ssl.keystore.key = {CANARY}",
    f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----",
    f"-----BEGIN EC PRIVATE KEY-----\n{CANARY}",  # cut
    f"eyJhbGciOiJIUzI1NiJ9.{CANARY}.x",
)


@pytest.mark.parametrize("text", SECRET_TEXTS)
def test_text_loses_its_secret_and_keeps_the_rest(text: str) -> None:
    cleaned = redacted_text(f"begin\n{text}\nend" if "BEGIN EC" not in text else text)
    assert CANARY not in cleaned
    assert REMOVED in cleaned
    if "BEGIN EC" not in text:
        assert cleaned.startswith("begin\n")
        assert cleaned.endswith("\nend")


def test_values_of_secret_names_are_removed_at_any_depth() -> None:
    document = {
        "settings": [{"name": "ssl.key.password", "value": CANARY}, {"name": "a", "value": "b"}],
        "sasl.password": CANARY,
        "nested": {"deep": [{"accessKey": CANARY, "note": f"password={CANARY}"}]},
        "number": 1,
    }
    cleaned = redacted(document)
    assert CANARY not in json.dumps(cleaned)
    assert isinstance(cleaned, dict)
    assert cleaned["settings"][1] == {"name": "a", "value": "b"}
    assert cleaned["number"] == 1


def test_names_of_places_and_times_are_no_secrets() -> None:
    for name in ("bootstrap.admin.password.location", "token.expiry.ms", "retention.ms", "topic"):
        assert not is_secret(name)
    assert redacted_text("orders-0 has offsets 3 to 7") == "orders-0 has offsets 3 to 7"


def test_bundle_has_the_clusters_state_and_no_secret(bootstrap: str, tmp_path: Path) -> None:
    called("topic", "create", "bundled", "--config", "retention.ms=1000000", bootstrap=bootstrap)
    config = tmp_path / "client.properties"
    config.write_text(f"security.protocol=PLAINTEXT\nsasl.password={CANARY}\n")
    log = tmp_path / "node.log"
    log.write_text("\n".join(["started", *SECRET_TEXTS[:-3], f"who is {CANARY}?", "ended"]))
    path = tmp_path / "bundle.tar.gz"
    outcome = called(
        *("--command-config", config, "debug", "bundle", "--out", path, "--log", log),
        *("--http", f"127.0.0.1:{free_port()}"),
        bootstrap=bootstrap,
    )
    assert outcome.lines == [str(path)]
    assert path.stat().st_mode & 0o077 == 0
    with tarfile.open(path) as archive:
        files = {
            member.name.removeprefix("bundle/"): archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    assert {"version.json", "status.json", "topics.json", "groups.json", "nodes/1.json"} <= set(
        files
    )
    assert not [name for name, text in files.items() if CANARY in text]
    assert REMOVED in files["command.json"]
    assert files["logs/node.log"].startswith("started\n")
    topics = {topic["name"]: topic for topic in json.loads(files["topics.json"])}
    assert topics["bundled"]["settings"] == {"retention.ms": "1000000"}
    assert json.loads(files["status.json"])["is_well"]
    settings = {one["name"]: one["value"] for one in json.loads(files["nodes/1.json"])}
    assert settings["num.partitions"] == "1"
    (missing,) = {name.rpartition("/")[0] for name in json.loads(files["errors.json"])}
    assert missing.startswith("http/127.0.0.1:")


def test_bundle_is_written_without_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog_cli.reaching.REFUSED_SECONDS", 0.2)
    monkeypatch.setattr("tidelog_cli.reaching.ASK_SECONDS", 0.1)
    monkeypatch.setattr("tidelog_cli.reaching.NOTE_SECONDS", 0.1)
    monkeypatch.setattr("tidelog_cli.reaching.ANSWER_SECONDS_MAX", 0.1)
    path = tmp_path / "b.tar.gz"
    outcome = called("debug", "bundle", "--out", path, bootstrap=f"127.0.0.1:{free_port()}")
    assert "the cluster's state is missing: no node answers" in outcome.errors
    assert path.exists()


class Pages(BaseHTTPRequestHandler):
    """The probes and metrics of a node that is not ready."""

    def do_GET(self) -> None:
        """Answer with the path, and a canary."""
        self.send_response(503 if self.path == "/readyz" else 200)
        self.end_headers()
        self.wfile.write(f"{self.path} password={CANARY}\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_pages_of_a_node_on_this_machine_are_there_unasked(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(debug_bundle, "FIRST_HTTP_PORT", server.server_port)
    path = tmp_path / "b.tar.gz"
    try:
        called("debug", "bundle", "--out", path, bootstrap=bootstrap)
    finally:
        server.shutdown()
        server.server_close()
    with tarfile.open(path) as archive:
        texts = {
            member.name.rpartition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
            if "/http/" in member.name
        }
    assert texts == {
        "readyz": f"503\n/readyz password={REMOVED}\n",
        "livez": f"/livez password={REMOVED}\n",
        "metrics": f"/metrics password={REMOVED}\n",
    }
