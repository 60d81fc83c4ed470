"""Clients are shown the same certificates as without the completed chain."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from tidelog_core.config import ListenerConfig
from tidelog_node.security.certificate_chain import with_issuers
from tidelog_node.security.tls_context import TlsMaterial, build_tls_context

ROOT = trustme.CA()
CHILD = ROOT.create_child_ca()
NAMESAKE = trustme.CA()  # the name of the root, another key


def pem(authority: trustme.CA) -> str:
    return authority.cert_pem.bytes().decode()


def key_and_chain(authority: trustme.CA, *, is_whole: bool) -> str:
    """Return a key and its certificate, with those of the authorities that the issuer adds."""
    issued = authority.issue_cert("127.0.0.1")
    shown = issued.cert_chain_pems if is_whole else issued.cert_chain_pems[:1]
    return "\n".join(one.bytes().decode() for one in [issued.private_key_pem, *shown])


def shown(server: ssl.SSLContext) -> list[str]:
    """Return the certificates (PEM) that a client of the context gets."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepted: Any = server.wrap_bio(to_server, to_client, server_side=True)
    connected: Any = client.wrap_bio(to_client, to_server)
    for end in (connected, accepted, connected):  # then the client has them
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return [one.public_bytes() for one in connected._sslobj.get_unverified_chain()]


def shown_by_openssl(folder: Path, key: str, trusted: str) -> list[str]:
    """Return them for a context that leaves the chain to OpenSSL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (folder / "key.pem").write_text(key)
    context.load_cert_chain(folder / "key.pem")
    if trusted:
        context.load_verify_locations(cadata=trusted)
    return shown(context)


@pytest.mark.parametrize(
    ("key", "trusted", "count"),
    [
        pytest.param(key_and_chain(ROOT, is_whole=False), "", 1, id="nothing is trusted"),
        pytest.param(key_and_chain(ROOT, is_whole=False), pem(ROOT), 2, id="the root"),
        pytest.param(
            key_and_chain(CHILD, is_whole=False), pem(ROOT) + pem(CHILD), 3, id="two authorities"
        ),
        pytest.param(key_and_chain(CHILD, is_whole=False), pem(CHILD), 2, id="not the root"),
        pytest.param(key_and_chain(CHILD, is_whole=False), pem(ROOT), 1, id="only the root"),
        pytest.param(key_and_chain(CHILD, is_whole=True), pem(ROOT), 2, id="given with the chain"),
        pytest.param(key_and_chain(ROOT, is_whole=False), pem(NAMESAKE), 1, id="a namesake"),
        pytest.param(
            key_and_chain(ROOT, is_whole=False), pem(NAMESAKE) + pem(ROOT), 2, id="both of a name"
        ),
    ],
)
def test_clients_get_what_openssl_would_show(
    tmp_path: Path, key: str, trusted: str, count: int
) -> None:
    context = build_tls_context(ListenerConfig(), TlsMaterial(key, key, "", trusted))
    assert shown(context) == shown_by_openssl(tmp_path, key, trusted)
    assert len(shown(context)) == count


def test_openssl_has_nothing_left_to_find() -> None:
    """It looks for issuers only where a certificate is alone."""
    key = key_and_chain(CHILD, is_whole=False)
    completed = with_issuers(key, pem(ROOT) + pem(CHILD))
    assert completed.count("BEGIN CERTIFICATE") == 3
    assert with_issuers(completed, pem(ROOT) + pem(CHILD)) == completed


@pytest.mark.parametrize("text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\n!\n"])
def test_unreadable_text_is_left_to_openssl(text: str) -> None:
    assert with_issuers(text, "") == text
    key = key_and_chain(ROOT, is_whole=False)
    assert with_issuers(key, text) == key
