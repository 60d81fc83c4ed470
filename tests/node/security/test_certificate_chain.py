"""Clients are shown the same certificates as without the completed chain."""

from __future__ import annotations

import datetime
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
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


def renewed(*years: int) -> tuple[str, list[str]]:
    """Return a key with its certificate, and those of its authority that end in these years."""
    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])

    def certificate(subject: x509.Name, key: ec.EllipticCurvePrivateKey, year: int) -> str:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
        builder = builder.public_key(key.public_key()).serial_number(year)
        builder = builder.not_valid_before(datetime.datetime(2000, 1, 1))
        builder = builder.not_valid_after(datetime.datetime(year, 1, 1))
        is_authority = x509.BasicConstraints(ca=subject == issuer, path_length=None)
        signed = builder.add_extension(is_authority, critical=True).sign(authority, hashes.SHA256())
        return signed.public_bytes(Encoding.PEM).decode()

    private = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    shown = private + certificate(name, own, 2100)
    return shown, [certificate(issuer, authority, year) for year in years]


@pytest.mark.parametrize("years", [(2010, 2090), (2090, 2010), (2010, 2020), (2020, 2010)])
def test_an_authority_that_is_valid_goes_before_one_that_has_expired(
    tmp_path: Path, years: tuple[int, int]
) -> None:
    """Both are trusted for a time: it was renewed with the same key."""
    key, authorities = renewed(*years)
    trusted = "".join(authorities)
    context = build_tls_context(ListenerConfig(), TlsMaterial(key, key, "", trusted))
    assert shown(context)[1:] == [authorities[years.index(max(years))]]
    assert shown(context) == shown_by_openssl(tmp_path, key, trusted)


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
