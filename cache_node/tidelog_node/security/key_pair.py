"""Makes the key and the certificate of a node, in a process of their own if that saves memory.

OpenSSL takes 5 MB, and most nodes without TLS and without other nodes never need it. A process of
10 ms leaves nothing behind.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PROGRAM = Path(__file__).with_name("openssl_pair.py")
_SECONDS_MAX = 30.0


def new_key_pair(common_name: str, *, valid_from: str, valid_to: str) -> bytes:
    """Return the key (PKCS #8) and the certificate, both as PEM.

    The times have the form ``YYYYMMDDHHMMSSZ``. Raises ``OSError`` if there is no OpenSSL or if it
    fails.
    """
    if "_ssl" not in sys.modules:
        return new_pair_elsewhere(common_name, valid_from=valid_from, valid_to=valid_to)
    # Something has loaded it, a listener with TLS for example.
    from tidelog_node.security.openssl_pair import new_pair

    return new_pair(common_name, valid_from=valid_from, valid_to=valid_to)


def new_pair_elsewhere(common_name: str, *, valid_from: str, valid_to: str) -> bytes:
    """Return a new key pair, made by another process. Raises ``OSError`` if that fails."""
    # Without the packages of users and without ``site``, which take half of its time.
    command = [sys.executable, "-I", "-S", str(_PROGRAM), common_name, valid_from, valid_to]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=_SECONDS_MAX)
    except subprocess.TimeoutExpired as late:
        raise OSError(f"no key pair after {_SECONDS_MAX:g} s") from late
    if done.returncode or not done.stdout:
        lines = done.stderr.decode(errors="replace").splitlines()
        raise OSError(lines[-1] if lines else f"exit status {done.returncode}")
    return done.stdout
