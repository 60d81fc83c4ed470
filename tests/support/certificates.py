"""An authority of the tests, and the files that nodes and clients get from it."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization


class Authority:
    """Issues certificates for 127.0.0.1 and for clients."""

    def __init__(self, folder: Path) -> None:
        """The files are put into ``folder``."""
        self._folder = folder
        self._authority = trustme.CA()
        folder.mkdir(parents=True, exist_ok=True)
        self.trusted = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(self.trusted)

    def node_pem(self, name: str = "node", *, kind: str = "ECDSA") -> Path:
        """Return a new key (ECDSA or RSA) and certificate of a node, in one file."""
        issued = self._authority.issue_cert(
            "127.0.0.1", "localhost", key_type=trustme.KeyType[kind]
        )
        return self._write(f"{name}.pem", issued)

    def client_pem(self, name: str) -> Path:
        """Return a new key and certificate of a client: ``CN=name,OU=team,O=trustme …``."""
        issued = self._authority.issue_cert(
            f"{name}@example.org", common_name=name, organization_unit_name="team"
        )
        return self._write(f"{name}.pem", issued)

    def client_context(self, pem: Path | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority."""
        return client_context(self.trusted, pem)

    def _write(self, file_name: str, issued: trustme.LeafCert) -> Path:
        path = self._folder / file_name
        # Renamed into place, as deployments do it: a reader sees the old file or the new one.
        new = path.with_suffix(".new")
        new.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
        return new.rename(path)


def client_context(trusted: Path, pem: Path | None = None) -> ssl.SSLContext:
    """Return the context of a client that trusts this authority, with its own certificate."""
    context = ssl.create_default_context(cafile=trusted)
    if pem is not None:
        context.load_cert_chain(pem)
    return context


def pkcs8(pem: Path) -> Path:
    """Return the same key and certificate as Java reads them: it knows PKCS#8 keys alone."""
    text = pem.read_bytes()
    key = serialization.load_pem_private_key(text, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path = pem.with_suffix(".pkcs8.pem")
    path.write_bytes(key + text[text.index(b"-----BEGIN CERTIFICATE") :])
    return path
