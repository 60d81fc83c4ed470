"""Formats the subject of a certificate as Java does, for Kafka's mapping rules and ACLs.

Rules and ACLs of an existing Kafka cluster were written for the text of
``X500Principal.getName()``. It is RFC 2253, but it is not the only text that RFC allows: the order
of a multi-valued RDN, which characters are escaped and the bytes of old string types are Java's.

The text is made from the bytes of the certificate, whose chain OpenSSL has verified:

    Certificate = { TBSCertificate, … }
    TBSCertificate = { [0] version, serial, algorithm, issuer, validity, subject, … }
    subject = { RDN* }, RDN = set of { OID, value }

Source: RFC 5280, 4.1; RFC 2253, 2; ``sun.security.x509.AVA`` and ``X500Name`` of OpenJDK 17.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

KEPT_CERTIFICATES_MAX = 1_024
KEPT_CERTIFICATE_BYTES_MAX = 4_096

# The attribute types that RFC 2253 names. Others appear as numbers.
_KEYWORDS: Mapping[bytes, str] = {
    bytes.fromhex("550403"): "CN",
    bytes.fromhex("550407"): "L",
    bytes.fromhex("550408"): "ST",
    bytes.fromhex("55040a"): "O",
    bytes.fromhex("55040b"): "OU",
    bytes.fromhex("550406"): "C",
    bytes.fromhex("550409"): "STREET",
    bytes.fromhex("0992268993f22c640119"): "DC",
    bytes.fromhex("0992268993f22c640101"): "UID",
}
_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
# UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString:
# Java reads the bytes of each as UTF-8.
_STRING_TAGS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
_ESCAPED = frozenset(',=+<>#;"\\')
_SPACES = " \r"


class _Element(NamedTuple):
    """One DER element."""

    tag: int
    content: bytes
    encoded: bytes  # with its tag and length


def distinguished_name(certificate: bytes) -> str:
    """Return the subject of the certificate (DER). Raises ``ValueError`` if it is malformed.

    Clients connect again with the same certificates, so the last short ones are remembered.
    """
    if len(certificate) <= KEPT_CERTIFICATE_BYTES_MAX:
        return _kept_subject(certificate)
    return _subject(certificate)


@lru_cache(maxsize=KEPT_CERTIFICATES_MAX)
def _kept_subject(certificate: bytes) -> str:
    return _subject(certificate)


def _subject(certificate: bytes) -> str:
    tbs = _one(_one(certificate, _SEQUENCE).content, _SEQUENCE, is_first=True)
    fields = [element for element in _elements(tbs.content) if element.tag != _VERSION]
    if len(fields) < 5:
        raise ValueError("the certificate has no subject")
    subject = fields[4]
    if subject.tag != _SEQUENCE:
        raise ValueError("the subject is no name")
    # The most specific part comes first in the text and last in the certificate.
    return ",".join(reversed([_rdn(element) for element in _elements(subject.content)]))


def _rdn(element: _Element) -> str:
    if element.tag != _SET:
        raise ValueError("a part of the subject is no set")
    return "+".join(_attribute(one) for one in _elements(element.content))


def _attribute(element: _Element) -> str:
    parts = list(_elements(element.content))
    if len(parts) != 2 or parts[0].tag != _OID:
        raise ValueError("an attribute of the subject is not a type and a value")
    oid, value = parts
    keyword = _KEYWORDS.get(oid.content)
    if keyword is None or value.tag not in _STRING_TAGS:
        return f"{keyword or _dotted(oid.content)}=#{value.encoded.hex()}"
    return f"{keyword}={_escape(value.content.decode('utf-8', 'replace'))}"


def _escape(text: str) -> str:
    escaped = "".join(
        f"\\{character}" if character in _ESCAPED else "\\00" if character == "\0" else character
        for character in text
    )
    begin = len(escaped) - len(escaped.lstrip(_SPACES))
    end = len(escaped.rstrip(_SPACES))
    if begin == len(escaped):
        end = begin  # all of them are spaces
    before = "".join(f"\\{space}" for space in escaped[:begin])
    behind = "".join(f"\\{space}" for space in escaped[end:])
    return before + escaped[begin:end] + behind


def _dotted(oid: bytes) -> str:
    """Return the number of an attribute type, such as ``1.2.840.113549.1.9.1``."""
    numbers: list[int] = []
    number, is_whole = 0, True
    for byte in oid:
        number, is_whole = number << 7 | byte & 0x7F, byte < 0x80
        if is_whole:
            numbers.append(number)
            number = 0
    if not numbers or not is_whole:
        raise ValueError("an attribute's type is cut off")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _one(data: bytes, tag: int, *, is_first: bool = False) -> _Element:
    """Return the only element, or the first one of several."""
    elements = _elements(data)
    element = next(elements, None)
    if element is None or element.tag != tag or (not is_first and next(elements, None)):
        raise ValueError("the certificate is malformed")
    return element


def _elements(data: bytes) -> Iterator[_Element]:
    """Yield the DER elements one after the other. Raises ``ValueError``."""
    position = 0
    while position < len(data):
        if position + 2 > len(data):
            raise ValueError("the certificate is cut off")
        tag, size = data[position], data[position + 1]
        begin = position + 2
        if size >= 0x80:
            count = size & 0x7F
            if not 1 <= count <= 4:
                raise ValueError("the certificate has a length that DER does not allow")
            size = int.from_bytes(data[begin : begin + count], "big")
            begin += count
        end = begin + size
        if end > len(data):
            raise ValueError("the certificate is cut off")
        yield _Element(tag, data[begin:end], data[position:end])
        position = end
