"""``tidelog certificate``: files that a node and its clients can use."""

from __future__ import annotations

import ssl
from pathlib import Path

from cryptography import x509

from tests.support.command import called


def names_in(pem: Path) -> list[str]:
    certificate = x509.load_pem_x509_certificates(pem.read_bytes())[0]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*names.get_values_for_type(x509.DNSName)]


def test_a_certificate_is_for_its_hosts_and_the_authority_stays(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    called("certificate", folder, "--host", "*.example.org", "--host", "kafka.example.com")
    authority = (folder / "authority.pem").read_bytes()
    assert names_in(folder / "node.pem") == ["*.example.org", "kafka.example.com"]
    assert (folder / "node.pem").stat().st_mode & 0o077 == 0
    called("certificate", folder, "--host", "other.example.org")
    assert (folder / "authority.pem").read_bytes() == authority
    assert names_in(folder / "node.pem") == ["other.example.org"]
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "node.pem")
    client = ssl.create_default_context(cafile=folder / "authority.pem")
    ends = [ssl.MemoryBIO() for _ in range(2)]
    one = client.wrap_bio(ends[0], ends[1], server_hostname="other.example.org")
    two = server.wrap_bio(ends[1], ends[0], server_side=True)
    for _ in range(3):
        for end in (one, two):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert one.version() == "TLSv1.3"
