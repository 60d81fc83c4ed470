"""Makes a P-256 key and a self-signed certificate with OpenSSL's own functions.

Python's ``ssl`` has no such functions, so ``ctypes`` calls them. The package ``cryptography`` has,
but takes 50 ms to load. ``key_pair`` runs this module as a program, so it imports few others.

    openssl_pair <common name> <valid from> <valid to>

Source: OpenSSL 3.0, EVP_PKEY_generate(3), X509_sign(3), PEM_write_bio_PrivateKey(3).
"""

from __future__ import annotations

import ctypes
import hashlib  # noqa: F401  has Python's own libcrypto loaded, in whatever folder it is
import os
import sys
from contextlib import ExitStack

TYPE_CHECKING = False  # that of ``typing``, which takes as long as the rest of this program
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LIBRARY = "libcrypto.so.3"
_POINTER, _TEXT, _INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_VERSION_3 = 2  # as certificates encode it
_UTF8 = 0x1000  # MBSTRING_UTF8
_PEM_BYTES_MAX = 8_192
# What each function returns, and its arguments. They return 0 or NULL if they fail.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "EVP_PKEY_CTX_new_from_name": (_POINTER, (_POINTER, _TEXT, _TEXT)),
    "EVP_PKEY_keygen_init": (_INT, (_POINTER,)),
    "EVP_PKEY_CTX_set_group_name": (_INT, (_POINTER, _TEXT)),
    "EVP_PKEY_generate": (_INT, (_POINTER, ctypes.POINTER(_POINTER))),
    "EVP_sha256": (_POINTER, ()),
    "X509_new": (_POINTER, ()),
    "X509_set_version": (_INT, (_POINTER, ctypes.c_long)),
    "X509_get_serialNumber": (_POINTER, (_POINTER,)),
    "ASN1_INTEGER_set_uint64": (_INT, (_POINTER, ctypes.c_uint64)),
    "X509_getm_notBefore": (_POINTER, (_POINTER,)),
    "X509_getm_notAfter": (_POINTER, (_POINTER,)),
    "ASN1_TIME_set_string_X509": (_INT, (_POINTER, _TEXT)),
    "X509_get_subject_name": (_POINTER, (_POINTER,)),
    "X509_NAME_add_entry_by_txt": (_INT, (_POINTER, _TEXT, _INT, _TEXT, _INT, _INT, _INT)),
    "X509_set_issuer_name": (_INT, (_POINTER, _POINTER)),
    "X509_set_pubkey": (_INT, (_POINTER, _POINTER)),
    "X509_sign": (_INT, (_POINTER, _POINTER, _POINTER)),
    "BIO_s_mem": (_POINTER, ()),
    "BIO_new": (_POINTER, (_POINTER,)),
    "BIO_read": (_INT, (_POINTER, _POINTER, _INT)),
    "PEM_write_bio_PKCS8PrivateKey": (_INT, (*[_POINTER] * 4, _INT, _POINTER, _POINTER)),
    "PEM_write_bio_X509": (_INT, (_POINTER, _POINTER)),
}


def new_pair(common_name: str, *, valid_from: str, valid_to: str) -> bytes:
    """Return the key (PKCS #8) and the certificate, both as PEM.

    The times have the form ``YYYYMMDDHHMMSSZ``. Raises ``OSError`` if the library is absent or too
    old, or if it fails.
    """
    library = ctypes.CDLL(_LIBRARY)

    def call(name: str, *arguments: Any) -> Any:
        returned = _function(library, name)(*arguments)
        if not returned or (isinstance(returned, int) and returned < 0):
            raise OSError(f"OpenSSL's {name} has failed")
        return returned

    with ExitStack() as stack:

        def owned(pointer: Any, free: str) -> Any:
            stack.callback(_freeing(library, free), pointer)
            return pointer

        context = owned(call("EVP_PKEY_CTX_new_from_name", None, b"EC", None), "EVP_PKEY_CTX_free")
        call("EVP_PKEY_keygen_init", context)
        call("EVP_PKEY_CTX_set_group_name", context, b"P-256")
        key = _POINTER()
        call("EVP_PKEY_generate", context, ctypes.byref(key))
        owned(key, "EVP_PKEY_free")
        certificate = owned(call("X509_new"), "X509_free")
        call("X509_set_version", certificate, _VERSION_3)
        serial = call("X509_get_serialNumber", certificate)
        call("ASN1_INTEGER_set_uint64", serial, 1 + (int.from_bytes(os.urandom(8), "big") >> 2))
        for field, time in (("X509_getm_notBefore", valid_from), ("X509_getm_notAfter", valid_to)):
            call("ASN1_TIME_set_string_X509", call(field, certificate), time.encode())
        name = call("X509_get_subject_name", certificate)
        entry = common_name.encode()
        call("X509_NAME_add_entry_by_txt", name, b"CN", _UTF8, entry, len(entry), -1, 0)
        call("X509_set_issuer_name", certificate, name)
        call("X509_set_pubkey", certificate, key)
        call("X509_sign", certificate, key, call("EVP_sha256"))
        out = owned(call("BIO_new", call("BIO_s_mem")), "BIO_free")
        call("PEM_write_bio_PKCS8PrivateKey", out, key, None, None, 0, None, None)
        call("PEM_write_bio_X509", out, certificate)
        pem = ctypes.create_string_buffer(_PEM_BYTES_MAX)
        size_bytes: int = call("BIO_read", out, pem, _PEM_BYTES_MAX)
        return pem.raw[:size_bytes]


def _function(library: ctypes.CDLL, name: str) -> Callable[..., Any]:
    try:
        function = library[name]
    except AttributeError as error:
        raise OSError(f"this OpenSSL has no {name}") from error
    function.restype, function.argtypes = _FUNCTIONS[name]
    return function


def _freeing(library: ctypes.CDLL, name: str) -> Callable[[Any], None]:
    function = library[name]
    function.restype, function.argtypes = None, (_POINTER,)
    return function


if __name__ == "__main__":
    sys.stdout.buffer.write(new_pair(sys.argv[1], valid_from=sys.argv[2], valid_to=sys.argv[3]))
