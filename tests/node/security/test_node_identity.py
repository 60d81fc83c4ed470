"""The certificate that each process of a node makes for itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from tidelog_node.security import key_pair
from tidelog_node.security import node_identity as identity_module
from tidelog_node.security.key_pair import new_pair_elsewhere
from tidelog_node.security.node_identity import NodeIdentity, generate_identity
from tidelog_node.security.openssl_pair import new_pair


@pytest.fixture(params=["OpenSSL", "another process", "the package"])
def generate(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], NodeIdentity]:
    """Return what makes identities: here, elsewhere, and where OpenSSL cannot be called."""
    if request.param == "another process":
        monkeypatch.setattr(identity_module, "new_key_pair", new_pair_elsewhere)
    elif request.param != "OpenSSL":

        def absent(*_: object, **__: object) -> bytes:
            raise OSError("no such library")

        monkeypatch.setattr(identity_module, "new_key_pair", absent)
    return generate_identity


def test_the_certificate_is_signed_by_its_own_key(
    generate: Callable[[int], NodeIdentity],
) -> None:
    identity = generate(7)
    certificate = x509.load_der_x509_certificate(identity.certificate)
    certificate.verify_directly_issued_by(certificate)
    assert certificate.version is x509.Version.v3
    assert certificate.subject.rfc4514_string() == "CN=tidelog node 7"
    assert certificate.issuer == certificate.subject
    assert certificate.not_valid_before_utc.year == 2000
    assert certificate.not_valid_after_utc.year == 9999
    key = load_pem_private_key(identity._pair, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP256R1)
    assert key.public_key() == certificate.public_key()


def test_identities_have_different_keys_and_serial_numbers(
    generate: Callable[[int], NodeIdentity],
) -> None:
    first, second = (x509.load_der_x509_certificate(generate(7).certificate) for _ in range(2))
    assert first.serial_number != second.serial_number
    assert first.public_key() != second.public_key()


def test_what_openssl_refuses_is_an_error() -> None:
    with pytest.raises(OSError, match="ASN1_TIME_set_string_X509 has failed"):
        new_pair("node", valid_from="yesterday", valid_to="99991231000000Z")


def test_what_openssl_refuses_in_the_process_of_its_own_is_an_error() -> None:
    with pytest.raises(OSError, match="ASN1_TIME_set_string_X509 has failed"):
        new_pair_elsewhere("node", valid_from="yesterday", valid_to="99991231000000Z")


@pytest.mark.parametrize("python", ["", "/nonexistent/python"])
def test_a_process_that_cannot_be_started_is_an_error(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", python)
    with pytest.raises(OSError, match=r"\[Errno"):
        new_pair_elsewhere("node", valid_from="20000101000000Z", valid_to="99991231000000Z")


def test_a_process_that_does_not_end_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "endless.py"
    program.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(key_pair, "_PROGRAM", program)
    monkeypatch.setattr(key_pair, "_SECONDS_MAX", 0.2)
    with pytest.raises(OSError, match=r"no key pair after 0\.2 s"):
        new_pair_elsewhere("node", valid_from="20000101000000Z", valid_to="99991231000000Z")


def test_a_process_without_an_answer_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "silent.py"
    program.write_text("")
    monkeypatch.setattr(key_pair, "_PROGRAM", program)
    with pytest.raises(OSError, match="exit status 0"):
        new_pair_elsewhere("node", valid_from="20000101000000Z", valid_to="99991231000000Z")


def test_a_node_that_takes_no_tokens_loads_no_library_of_cryptography() -> None:
    """It takes 15 MB. Neither does it load what serves a registry."""
    program = (
        "import sys; import tidelog_node.wiring;"
        "from tidelog_node.security.node_identity import generate_identity;"
        "generate_identity(1);"
        "unwanted = ('cryptography', 'joserfc', 'aiohttp', 'tidelog_core.schema_registry.api.registry_api');"
        "sys.exit(str([name for name in sys.modules if name.startswith(unwanted)] or ''))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.stderr.strip() == ""
