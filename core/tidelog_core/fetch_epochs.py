"""The session ids and epochs of fetch requests.

Source: KIP-227, Kafka's ``FetchMetadata``.
"""

from __future__ import annotations

NO_SESSION = 0  # the id of no session
INITIAL_EPOCH = 0  # of a request that names everything and requests a session
FINAL_EPOCH = -1  # of a request without a session; with a session's id it closes that session
EPOCH_MAX = 2**31 - 1


def epoch_after(epoch: int) -> int:
    """Return the epoch of a session's next request; 1 follows the last."""
    return epoch % EPOCH_MAX + 1
