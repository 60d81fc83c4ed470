"""Contexts of TLS listeners, from keys and certificates of every kind."""

from __future__ import annotations

import datetime
import ssl
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from tidelog_core.config import ListenerConfig
from tidelog_core.errors import InvalidConfig
from tidelog_node.security.cipher_suites import TLS_1_2_SUITES, TLS_1_3_SUITES
from tidelog_node.security.tls_context import TlsMaterial, build_tls_context, expiry

from tests.support.certificates import Authority

PASSWORD = "pass,=word"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def material(pem: str, *, password: str = "", trusted: str = "") -> TlsMaterial:
    return TlsMaterial(pem, pem, password, trusted)


def problem_of(config: ListenerConfig, made: TlsMaterial) -> str:
    with pytest.raises(InvalidConfig) as raised:
        build_tls_context(config, made)
    return str(raised.value)


def encrypted(pem: str) -> str:
    """Return the text with its key encrypted by ``PASSWORD``."""
    key = serialization.load_pem_private_key(pem.encode(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(PASSWORD.encode()),
    )
    return key.decode() + pem[pem.index("-----BEGIN CERTIFICATE") :]


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str, str]:
    """Return the version and the suite that both agree on."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepted = server.wrap_bio(to_server, to_client, server_side=True)
    connected = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    waiting = [connected, accepted]
    while waiting:
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    version, cipher = connected.version(), connected.cipher()
    assert version is not None
    assert cipher is not None
    return version, cipher[0]


def test_an_encrypted_key_needs_its_password(authority: Authority) -> None:
    pem = encrypted(authority.node_pem().read_text())
    build_tls_context(ListenerConfig(), material(pem, password=PASSWORD))
    assert problem_of(ListenerConfig(), material(pem)) == (
        "the private key is encrypted: give ssl.key.password"
    )
    assert problem_of(ListenerConfig(), material(pem, password="wrong")) == (
        "the private key cannot be decrypted: is ssl.key.password right?"
    )


@pytest.mark.parametrize(
    "key", [ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate()]
)
def test_a_key_may_be_of_another_kind(key: ec.EllipticCurvePrivateKey) -> None:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "node")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = x509.CertificateBuilder(
        name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1)
    ).sign(key, hashes.SHA256() if isinstance(key, ec.EllipticCurvePrivateKey) else None)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ) + certificate.public_bytes(serialization.Encoding.PEM)
    context = build_tls_context(ListenerConfig(), material(text.decode()))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    assert shake_hands(context, client)[0] == "TLSv1.3"


@pytest.mark.parametrize("kind", ["key", "chain"])
def test_a_part_that_is_missing_is_named(authority: Authority, kind: str) -> None:
    pem = authority.node_pem().read_text()
    begin = pem.index("-----BEGIN CERTIFICATE")
    key, chain = pem[:begin], pem[begin:]
    if kind == "key":
        assert "no private key" in problem_of(ListenerConfig(), material(chain))
    else:
        assert "no certificate" in problem_of(ListenerConfig(), material(key))


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    pem = authority.node_pem().read_text()
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    mixed = TlsMaterial(other.decode(), pem, "", "")
    assert "does not belong to the first certificate" in problem_of(ListenerConfig(), mixed)


@pytest.mark.parametrize("damage", ["", "garbage", "-----BEGIN CERTIFICATE-----\nAA\n"])
def test_what_is_no_pem_is_refused(authority: Authority, damage: str) -> None:
    problem_of(ListenerConfig(), material(damage))
    pem = authority.node_pem().read_text()
    if damage:
        config = ListenerConfig(ssl_client_auth="required")
        problem = problem_of(config, material(pem, trusted=damage))
        assert "trusted certificates" in problem


def test_no_text_of_a_material_shows_its_secrets(authority: Authority) -> None:
    pem = authority.node_pem().read_text()
    made = TlsMaterial(pem, pem, "canary", pem)
    assert "canary" not in repr(made)
    assert "BEGIN" not in repr(made)
    assert "canary" not in problem_of(
        ListenerConfig(), TlsMaterial(encrypted(pem), pem, "canary", "")
    )


def memory_file_count() -> int:
    """Return the number of open files in memory; other threads open sockets and pipes."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += str(descriptor.readlink()).startswith("/memfd:")
    return count


def test_a_key_never_reaches_a_disk(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: object, **__: object) -> None:
        raise AssertionError("a temporary file")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", forbid)
    before = memory_file_count()
    build_tls_context(ListenerConfig(), material(authority.node_pem().read_text()))
    assert memory_file_count() == before


def test_the_expiry_is_that_of_the_first_certificate(authority: Authority) -> None:
    made = material(authority.node_pem().read_text())
    assert expiry(made) > datetime.datetime.now(datetime.UTC)


@pytest.mark.parametrize("name", list(TLS_1_2_SUITES))
def test_each_suite_of_tls_1_2_can_be_chosen(
    tmp_path: Path, authority: Authority, name: str
) -> None:
    kind = "RSA" if "_RSA_" in name else "ECDSA"
    config = ListenerConfig(ssl_cipher_suites=(name,), ssl_enabled_protocols=("TLSv1.2",))
    context = build_tls_context(config, material(authority.node_pem(kind=kind).read_text()))
    assert shake_hands(context, authority.client_context()) == ("TLSv1.2", TLS_1_2_SUITES[name])
    others = [openssl for iana, openssl in TLS_1_2_SUITES.items() if iana != name]
    client = authority.client_context()
    client.set_ciphers(":".join(others))
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake_hands(context, client)


def test_tls_1_3_is_preferred_and_can_be_the_only_one(authority: Authority) -> None:
    pem = authority.node_pem().read_text()
    version, suite = shake_hands(
        build_tls_context(ListenerConfig(), material(pem)), authority.client_context()
    )
    assert (version, suite in TLS_1_3_SUITES) == ("TLSv1.3", True)
    only = ListenerConfig(ssl_enabled_protocols=("TLSv1.3",))
    client = authority.client_context()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shake_hands(build_tls_context(only, material(pem)), client)


def test_wrong_settings_say_what_is_allowed(authority: Authority) -> None:
    made = material(authority.node_pem().read_text())
    problem = problem_of(ListenerConfig(ssl_cipher_suites=("TLS_RSA_WITH_NULL_MD5",)), made)
    assert all(name in problem for name in TLS_1_2_SUITES)
    problem = problem_of(ListenerConfig(ssl_cipher_suites=("TLS_AES_128_GCM_SHA256",)), made)
    assert "TLS 1.3 cannot be chosen, leave out TLS_AES_128_GCM_SHA256" in problem
    assert "has none" in problem_of(ListenerConfig(ssl_enabled_protocols=()), made)
    assert "needs the authorities" in problem_of(ListenerConfig(ssl_client_auth="required"), made)
    rsa_only = ListenerConfig(
        ssl_cipher_suites=("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",),
        ssl_enabled_protocols=("TLSv1.2",),
    )
    assert "no handshake is possible by TLSv1_2" in problem_of(rsa_only, made)
