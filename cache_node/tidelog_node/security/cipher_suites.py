"""The cipher suites of TLS listeners, by their IANA names as in Kafka's settings.

The suites for TLS 1.2 have forward secrecy (ECDHE) and authenticated encryption. All suites of
TLS 1.3 have both, and Python cannot choose among them.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence

from tidelog_core.errors import InvalidConfig

# By IANA name the name in OpenSSL, in the order of preference.
TLS_1_2_SUITES: Mapping[str, str] = {
    f"TLS_ECDHE_{key}_WITH_{iana}": f"ECDHE-{key}-{openssl}"
    for iana, openssl in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
    for key in ("ECDSA", "RSA")
}
TLS_1_3_SUITES = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
)


def apply_cipher_suites(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """Allow only these suites of TLS 1.2, or all of ``TLS_1_2_SUITES`` without names.

    Raises ``InvalidConfig`` for other names.
    """
    problems = []
    for name in names:
        if name in TLS_1_3_SUITES:
            problems.append(
                f"ssl.cipher.suites: the suites of TLS 1.3 cannot be chosen, leave out {name}"
            )
        elif name not in TLS_1_2_SUITES:
            allowed = ", ".join(TLS_1_2_SUITES)
            problems.append(f"ssl.cipher.suites: {name!r} is not one of {allowed}")
    if problems:
        raise InvalidConfig(problems)
    context.set_ciphers(":".join(TLS_1_2_SUITES[name] for name in names or TLS_1_2_SUITES))
