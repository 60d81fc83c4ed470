"""The files of ``tidelog up --secure``: an authority, the nodes' certificate and an admin's login.

They are made on the first start, in ``secure`` under the data directory:

    authority.pem, authority.key.pem   signs the nodes' certificate
    node.pem                           the nodes' key and certificate
    token.key                          what delegation tokens are made with
    client.properties                  an admin's settings for the command, Java and Kafka's tools
    librdkafka.properties              the same for librdkafka: kcat -F

Only this user may read those with keys or passwords. The nodes take PLAIN too, which TLS protects:
librdkafka before 2.6.1, as Debian 12's kcat has it, cannot log in by SCRAM at a server that checks
the nonce (CVE-2024-56128).
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.settings.properties_file import read_properties
from tidelog_core.admin.security.first_user import MECHANISM, ensure_first_user
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.location import opened_metadata_store
from tidelog_core.model import USER_KIND
from tidelog_core.security.plain import PLAIN_MECHANISM
from tidelog_core.security.scram_credentials import ScramMechanism
from tidelog_core.setting_values.authorizer import ACL_AUTHORIZERS

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

PROTOCOL = "SASL_SSL"  # of the nodes' listeners
ADMIN = "admin"
PASSWORD_SIZE_BYTES = 24
TOKEN_KEY_SIZE_BYTES = 32
VALID_FOR = datetime.timedelta(days=5 * 365)
RENEWED_BEFORE = datetime.timedelta(days=30)
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Secured:
    """The paths of the files."""

    folder: Path

    @property
    def node_pem(self) -> Path:
        """The nodes' key and certificate."""
        return self.folder / "node.pem"

    @property
    def node_settings(self) -> dict[str, str]:
        """The settings of the nodes."""
        return {
            "ssl.keystore.location": str(self.node_pem),
            "sasl.enabled.mechanisms": ",".join((*ScramMechanism, PLAIN_MECHANISM)),
            "authorizer.class.name": ACL_AUTHORIZERS[0],
            "super.users": f"{USER_KIND}:{ADMIN}",
            "delegation.token.secret.key.location": str(self.token_key),
        }

    @property
    def token_key(self) -> Path:
        """The secret key of delegation tokens."""
        return self.folder / "token.key"

    @property
    def authority_pem(self) -> Path:
        """The certificate of the authority, which clients trust."""
        return self.folder / "authority.pem"

    @property
    def client_properties(self) -> Path:
        """The admin's settings by Java's names."""
        return self.folder / "client.properties"

    @property
    def librdkafka_properties(self) -> Path:
        """The admin's settings by librdkafka's names."""
        return self.folder / "librdkafka.properties"

    @property
    def password(self) -> str:
        """The admin's password."""
        return read_properties(self.librdkafka_properties)["sasl.password"]


def prepare(data_dir: Path, host: str, ports: range) -> Secured:
    """Make the files that are missing, and return their paths.

    The nodes' certificate is made again for another host, and before it expires. The admin keeps
    the password, at any address.
    """
    secured = Secured(data_dir.absolute() / "secure")
    secured.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, key = _authority(secured)
    if not _is_current(secured.node_pem, host, authority):
        _make_node_pem(secured.node_pem, [host, *LOCAL_NAMES], authority, key)
    if not secured.token_key.exists():
        _write(secured.token_key, secrets.token_urlsafe(TOKEN_KEY_SIZE_BYTES).encode())
    _write_properties(secured, host, ports)
    return secured


def make_certificate(folder: Path, hosts: Sequence[str]) -> Secured:
    """Make a new certificate of nodes for these hosts, and the authority if it is missing.

    A host is a name, such as ``*.example.org``, or an address. Nothing else is made.
    """
    secured = Secured(folder.absolute())
    secured.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, key = _authority(secured)
    _make_node_pem(secured.node_pem, hosts, authority, key)
    return secured


async def ensure_admin(metadata_store_url: str, password: str) -> None:
    """Store the admin's login if there is no such user. Durable on return."""
    async with opened_metadata_store(metadata_store_url, may_be_new=True) as store:
        view = ClusterView(store, shows_security=True)
        await view.refresh()
        await ensure_first_user(store, view, ADMIN, password)


def _authority(secured: Secured) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key_path = secured.folder / "authority.key.pem"
    if secured.authority_pem.exists() and key_path.exists():
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate(secured.authority_pem.read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("tidelog authority")
    certificate = _builder(name, name, key.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    signed = _sign(certificate, key)
    _write(key_path, _key_text(key))
    _write(secured.authority_pem, signed.public_bytes(serialization.Encoding.PEM))
    return signed, key


def _is_current(path: Path, host: str, authority: x509.Certificate) -> bool:
    """Return whether the nodes' certificate is of the authority, for the host, and lasts."""
    from cryptography import x509

    if not path.exists():
        return False
    certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return (
        certificate.issuer == authority.subject
        and _general_name(host) in names
        and left > RENEWED_BEFORE
    )


def _make_node_pem(
    path: Path,
    hosts: Sequence[str],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    names = [_general_name(one) for one in dict.fromkeys(hosts)]
    builder = _builder(_name("tidelog node"), authority.subject, key.public_key())
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = _sign(builder, authority_key)
    encoding = serialization.Encoding.PEM
    _write(path, _key_text(key) + certificate.public_bytes(encoding))


def _write_properties(secured: Secured, host: str, ports: range) -> None:
    is_new = not secured.librdkafka_properties.exists()
    password = secrets.token_urlsafe(PASSWORD_SIZE_BYTES) if is_new else secured.password
    address = f"[{host}]" if ":" in host else host
    servers = ",".join(f"{address}:{port}" for port in ports)
    both = f"bootstrap.servers={servers}\nsecurity.protocol={PROTOCOL}\n"
    _write(
        secured.librdkafka_properties,
        f"{both}ssl.ca.location={secured.authority_pem}\nsasl.mechanism={PLAIN_MECHANISM}\n"
        f"sasl.username={ADMIN}\nsasl.password={password}\n".encode(),
    )
    _write(
        secured.client_properties,
        f"{both}ssl.truststore.type=PEM\nssl.truststore.location={secured.authority_pem}\n"
        f"sasl.mechanism={MECHANISM}\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{ADMIN}" password="{password}";\n'.encode(),
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + VALID_FOR)
    )


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _name(common_name: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes) -> None:
    """Write a file that this user alone can read; it is whole or not there."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
