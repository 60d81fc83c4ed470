"""The HMACs of delegation tokens, and what is stored in their place."""

from __future__ import annotations

import base64

import pytest
from tidelog_core.errors import InvalidConfig
from tidelog_core.security.delegation_tokens import (
    DIGEST_SIZE_BYTES,
    KEY_SIZE_BYTES_MIN,
    TokenSecret,
    new_token_id,
    token_credentials,
    token_digest,
    token_password,
)
from tidelog_core.security.scram_credentials import ScramMechanism, credential_from, salt_password
from tidelog_core.security.scram_messages import escaped_name

# RFC 4231, test case 1.
KEY = "\x0b" * 20
SECRET = TokenSecret(KEY)
OF_HI_THERE = (
    "87aa7cdea5ef619d4ff0b4241a1d6cb02379f4e2ce4ec2787ad0b30545e17cde"
    "daa833b7d6b8a702038b274eaea3f4e4be9d914eeb61f1702e696c203a126854"
)


def test_the_hmac_is_that_of_the_rfc() -> None:
    assert SECRET.hmac("Hi There").hex() == OF_HI_THERE
    assert len(SECRET.hmac("an-id")) == 64


def test_a_stored_token_fits_the_key_that_made_it_alone() -> None:
    token_hmac = SECRET.hmac("an-id")
    digest = token_digest(token_hmac)
    assert len(digest) == DIGEST_SIZE_BYTES
    assert SECRET.known_hmac("an-id", digest) == token_hmac
    assert SECRET.known_hmac("another", digest) is None
    assert TokenSecret("x" * 40).known_hmac("an-id", digest) is None


@pytest.mark.parametrize("key", ["", "canary", "c" * (KEY_SIZE_BYTES_MIN - 1)])
def test_a_key_that_can_be_guessed_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        TokenSecret(key)
    assert not key or key not in str(refused.value)
    TokenSecret("c" * KEY_SIZE_BYTES_MIN)


def test_a_key_is_not_shown() -> None:
    assert KEY not in repr(SECRET) + str(SECRET)
    assert not hasattr(SECRET, "__dict__")


def test_ids_are_names_that_scram_can_send_and_no_options() -> None:
    ids = {new_token_id() for _ in range(1000)}
    assert len(ids) == 1000
    for token_id in ids:
        assert not token_id.startswith("-")
        assert escaped_name(token_id) == token_id.encode()


def test_credentials_are_those_of_the_hmac_as_a_password() -> None:
    token_hmac = SECRET.hmac("an-id")
    assert base64.b64decode(token_password(token_hmac)) == token_hmac
    for mechanism, stored in token_credentials(token_hmac).items():
        salted = salt_password(
            mechanism,
            token_password(token_hmac),
            salt=stored.salt,
            iterations=stored.iterations,
        )
        assert stored == credential_from(
            mechanism, salted, salt=stored.salt, iterations=stored.iterations
        )
    assert token_credentials(token_hmac).keys() == set(ScramMechanism)
    assert token_credentials(token_hmac) != token_credentials(token_hmac), "a salt of its own"
