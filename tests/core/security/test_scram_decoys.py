"""Decoys look like the credentials of users, and stay the same."""

from __future__ import annotations

import random
import re

from tidelog_core.security.scram_credentials import ScramCredential, ScramMechanism
from tidelog_core.security.scram_decoys import SHAPES_MAX, Decoys

from tests.support.scram_users import stored

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
NAMES = [f"user-{number}" for number in range(200)]


def shaped(salt: bytes, iterations: int) -> ScramCredential:
    return ScramCredential(salt=salt, stored_key=b"", server_key=b"", iterations=iterations)


def test_decoy_is_always_the_same_for_a_name_a_mechanism_and_a_secret() -> None:
    decoys = [Decoys(secret, {}) for secret in (b"one", b"one", b"other")]
    found = [[one.credential("alice", SHA_256), one.credential("alice", SHA_512)] for one in decoys]
    assert found[0] == found[1]
    salts = {credential.salt for some in found[1:] for credential in some}
    assert len(salts) == 4
    assert len(decoys[0].credential("alice", SHA_512).stored_key) == 64


def test_decoys_have_the_shapes_of_the_stored_credentials() -> None:
    users = [stored("a", SHA_256, salt=b"x" * 20), stored("b", SHA_256, iterations=8192)]
    decoys = Decoys(b"secret", {SHA_256: users})
    shapes = {
        (len(one.salt), one.iterations)
        for one in (decoys.credential(name, SHA_256) for name in NAMES)
    }
    assert shapes == {(len(user.salt), user.iterations) for user in users}


def test_decoys_of_users_that_kafkas_tools_made_have_such_salts() -> None:
    """``ScramFormatter.secureRandomBytes``: the digits of a random number of 130 bits."""
    decoys = Decoys(b"secret", {SHA_256: [shaped(b"1a2b3c4d5e6f7g8h9i0jklmno", 4096)]})
    salts = [decoys.credential(name, SHA_256).salt for name in NAMES]
    assert all(re.fullmatch(rb"[1-9a-z][0-9a-z]{20,25}", salt) for salt in salts)
    assert {len(salt) for salt in salts} >= {25, 26}
    assert all(int(salt, 36) < 2**130 for salt in salts)


def test_new_shape_changes_few_decoys() -> None:
    users = [shaped(b"S" * size, 4096) for size in range(16, 23)]
    before = Decoys(b"secret", {SHA_256: users[:-1]})
    after = Decoys(b"secret", {SHA_256: users})
    changed = sum(
        before.credential(name, SHA_256) != after.credential(name, SHA_256) for name in NAMES
    )
    assert 0 < changed < 2 * len(NAMES) / len(users)


def test_shapes_are_bounded() -> None:
    rng = random.Random(5)
    users = [shaped(rng.randbytes(rng.randrange(16, 900)), 4096) for _ in range(500)]
    decoys = Decoys(b"secret", {SHA_256: users})
    sizes = {len(decoys.credential(name, SHA_256).salt) for name in NAMES}
    assert len(sizes) <= SHAPES_MAX
