"""Keeps a token until shortly before it expires, and fetches one for all who wait.

A thread fetches, because sources block. Clients in several event loops may share the tokens. While
the issuer cannot be reached, the last token is used until it expires.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache

from tidelog.tokens.bearer_token import BearerToken, TokenSource

REFRESHED_AFTER_SHARE = 0.8  # of a token's life; Kafka's sasl.login.refresh.window.factor
SHARED_MAX = 16


class CachedTokens:
    """The tokens of one source. Thread-safe."""

    def __init__(self, source: TokenSource, *, now: Callable[[], float] = time.time) -> None:
        self._source = source
        self._now = now
        self._lock = threading.Lock()
        self._kept: BearerToken | None = None
        self._refreshed_at = 0.0  # when the next token is fetched
        self._fetching: Future[str] | None = None

    async def token(self) -> str:
        """Return a token that has not expired. Raises what the source raises."""
        with self._lock:
            if self._kept is not None and self._now() < self._refreshed_at:
                return self._kept.text
            fetching = self._fetching
            if fetching is None:
                fetching = self._fetching = Future()
                fetching.set_running_or_notify_cancel()  # One who gives up does not end it.
                threading.Thread(
                    target=self._fetch, args=(fetching,), name="tidelog-token", daemon=True
                ).start()
        return await asyncio.wrap_future(fetching)

    def _fetch(self, fetching: Future[str]) -> None:
        began_at = self._now()
        try:
            new = self._source.fetch()
        except BaseException as error:
            with self._lock:
                self._fetching = None
                kept = self._kept
            if kept is not None and (kept.expires_at or 0.0) > self._now():
                fetching.set_result(kept.text)
            else:
                fetching.set_exception(error)
            return
        with self._lock:
            self._fetching = None
            self._kept = new
            life_s = 0.0 if new.expires_at is None else max(new.expires_at - began_at, 0.0)
            self._refreshed_at = began_at + life_s * REFRESHED_AFTER_SHARE
        fetching.set_result(new.text)


@lru_cache(SHARED_MAX)
def shared_tokens(source: TokenSource) -> CachedTokens:
    """Return this process's tokens of the source: tasks of Spark make many clients, one by one."""
    return CachedTokens(source)


# In a process that was forked, no thread goes on to fetch what others wait for.
os.register_at_fork(after_in_child=shared_tokens.cache_clear)
