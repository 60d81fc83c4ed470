"""Classifies obstore's errors of S3: refused, slowed down, expired, never sent.

Most errors differ by their text alone, which has the answer of S3.
"""

from __future__ import annotations

import re

import obstore
from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from tidelog_core.errors import OutcomeUnknown, StoreUnavailable

REFUSED = ("AccessDenied", "incorrectly configured region")
# Answers other than 401 and 403 by which S3 refuses every request.
# Source: S3 API reference, error responses.
REFUSALS = frozenset(
    {
        "AuthorizationHeaderMalformed",
        "ExpiredToken",
        "InvalidBucketName",
        "InvalidToken",
        "NoSuchBucket",
        "PermanentRedirect",
    }
)

# Answers of 503 by which S3 asks for fewer requests: it has not carried the request out.
SLOW_DOWN = frozenset({"SlowDown", "ServiceUnavailable", "RequestLimitExceeded"})

_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")


def write_failure(key: str, error: Exception) -> OutcomeUnknown | StoreUnavailable:
    """Return the error of a write that failed and is not repeated."""
    if is_final(error) or is_unsent(error):
        return StoreUnavailable(f"object {key!r} was not written: {summary(error)}")
    return OutcomeUnknown(f"object {key!r} may not be written: {summary(error)}")


def is_final(error: Exception) -> bool:
    """Whether S3 refused the request, so that asking again will not help."""
    return type(error) not in (obstore.exceptions.GenericError, TimeoutError) or is_refusal(error)


def is_refusal(error: Exception) -> bool:
    """Whether S3 will refuse until an operator changes credentials, policies or the bucket."""
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return True
    text = str(error)
    code = _CODE.search(text)
    # A redirect, and DeleteObjects' error of one key, have no error code.
    if code is not None and (code[1] in REFUSALS or code[1].startswith("KMS.")):
        return True  # KMS.: the object's key is disabled, is to be deleted or is not there.
    return any(said in text for said in REFUSED)


def is_unsent(error: Exception) -> bool:
    """Whether the request never reached S3. Only obstore's debug text shows this."""
    return "kind: Connect," in str(error)


def is_slowed(error: Exception) -> bool:
    """Whether S3 has refused the request because there are too many. Source: S3, error responses.

    An answer of 503 without S3's own code may come from a proxy, after the request was carried out.
    """
    code = _CODE.search(str(error))
    return code is not None and code[1] in SLOW_DOWN


def has_expired(error: Exception) -> bool:
    """Whether S3 refused the session token. Only obstore's text shows this."""
    text = str(error).partition("\n")[0]
    # The answer to a HEAD has no body that could give a reason.
    return "<Code>ExpiredToken</Code>" in str(error) or (
        "performing HEAD" in text and "400 Bad Request" in text
    )


def summary(error: Exception) -> str:
    """Return the error's first line and, of S3's own answer, code and message."""
    text = str(error)
    first = text.partition("\n")[0].partition("<?xml")[0].partition("<Error>")[0]
    said = [found[1] for found in (_CODE.search(text), _MESSAGE.search(text)) if found is not None]
    words = ": ".join([first.rstrip(": ") or type(error).__name__, *said]).split()
    return " ".join(words)
