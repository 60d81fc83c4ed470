"""The simulated object store: create if absent, strongly consistent, unreliable answers.

A PUT is applied at one moment. It may be refused, torn (nothing is written), applied although
the answer is lost, applied twice, or seconds after its caller gave up. So is a DELETE, each key
at its own moment. A listing comes in pages,
each as the store is at its own moment; it may be torn, and then its caller knows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tidelog_core.diskless.chain.chain_writer import PutOutcome

from tests.simulation.world import Endpoint, World

TIMEOUT_MS = 80.0
LATE_MS_MAX = 500.0
PAGE_SIZE = 4

Answer = Callable[..., None]


class SimObjects:
    """All objects, and the way to them."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self.objects: dict[str, bytes] = {}
        self._keys: list[str] = []
        self.cut: set[int] = set()
        self.refusal = 0.0  # 503
        self.conflict = 0.0  # 409
        self.unknown = 0.0  # answers lost, before or after
        self.late = 0.0  # of those: applied long after
        self.doubling = 0.0
        self.tearing = 0.0  # of listings
        self.delay_factor = 1.0
        self.put_count = 0
        self.on_applied: Callable[[str, bytes], None] = lambda *_: None
        self.on_deleted: Callable[[str], None] = lambda *_: None

    def heal(self) -> None:
        """Be a good store from now on; what is late stays late."""
        self.cut.clear()
        self.refusal = self.conflict = self.unknown = self.late = 0.0
        self.doubling = self.tearing = 0.0
        self.delay_factor = 1.0

    # -- requests --

    def put(
        self,
        caller: Endpoint,
        key: str,
        data: bytes,
        handler: Answer,
        *args: Any,
        is_conditional: bool,
    ) -> None:
        """Put the object if absent, and answer with a ``PutOutcome``."""
        random, world = self._random, self._world
        self.put_count += 1
        draw = random.random()
        if caller.broker_id in self.cut:
            world.after(TIMEOUT_MS, caller.deliver, handler, (PutOutcome.UNKNOWN, *args))
        elif draw < self.refusal:
            world.after(self._delay(), caller.deliver, handler, (PutOutcome.THROTTLED, *args))
        elif draw < self.refusal + self.conflict:
            world.after(self._delay(), caller.deliver, handler, (PutOutcome.TAKEN, *args))
        elif draw < self.refusal + self.conflict + self.unknown:
            world.after(TIMEOUT_MS, caller.deliver, handler, (PutOutcome.UNKNOWN, *args))
            kind = random.random()
            if kind < self.late:
                late_ms = TIMEOUT_MS + random.random() * LATE_MS_MAX
                world.after(late_ms, self._apply, key, data, is_conditional)
            elif kind < 0.8:
                world.after(self._delay(), self._apply, key, data, is_conditional)
        else:
            world.after(
                self._delay(),
                self._put,
                world.now_ms,
                caller,
                key,
                data,
                handler,
                args,
                is_conditional,
            )
            if random.random() < self.doubling:
                world.after(
                    self._delay() + random.random() * LATE_MS_MAX,
                    self._apply,
                    key,
                    data,
                    is_conditional,
                )

    def get(self, caller: Endpoint, key: str, handler: Answer, *args: Any) -> None:
        """Answer with (whether it is known, the bytes or ``None``)."""
        if self._is_lost(caller):
            self._world.after(TIMEOUT_MS, caller.deliver, handler, (False, None, *args))
        else:
            self._world.after(self._delay(), self._get, caller, key, handler, args)

    def list(self, caller: Endpoint, prefix: str, start: str, handler: Answer, *args: Any) -> None:
        """Answer with all keys of the prefix from ``start`` on; ``None`` if a page was torn."""
        self._page(caller, prefix, start, [], handler, args)

    def delete(self, caller: Endpoint, keys: Sequence[str], handler: Answer, *args: Any) -> None:
        """Delete the objects, each at its own moment or not at all; answer nothing that matters."""
        random, world = self._random, self._world
        if caller.broker_id in self.cut or random.random() < self.refusal:
            return
        is_unknown = random.random() < self.unknown
        for key in keys:
            late_ms = 0.0
            if is_unknown:
                kind = random.random()
                if kind >= max(self.late, 0.8):
                    continue
                late_ms = TIMEOUT_MS + random.random() * LATE_MS_MAX if kind < self.late else 0.0
            world.after(self._delay() + late_ms, self._delete, key)
            if random.random() < self.doubling:
                world.after(self._delay() + random.random() * LATE_MS_MAX, self._delete, key)
        world.after(self._delay() * 2, caller.deliver, handler, args)

    # -- what they do --

    def _put(
        self,
        sent_ms: float,
        caller: Endpoint,
        key: str,
        data: bytes,
        handler: Answer,
        args: tuple[Any, ...],
        is_conditional: bool,
    ) -> None:
        outcome = PutOutcome.STORED if self._apply(key, data, is_conditional) else PutOutcome.TAKEN
        delay_ms = self._delay() / 2
        if caller.broker_id in self.cut or self._world.now_ms + delay_ms - sent_ms > TIMEOUT_MS:
            outcome, delay_ms = PutOutcome.UNKNOWN, sent_ms + TIMEOUT_MS - self._world.now_ms
        self._world.after(max(0.0, delay_ms), caller.deliver, handler, (outcome, *args))

    def _apply(self, key: str, data: bytes, is_conditional: bool) -> bool:
        if key in self.objects:
            if is_conditional:
                return False
        else:
            insort(self._keys, key)
        self.objects[key] = data
        self.on_applied(key, data)
        return True

    def _get(self, caller: Endpoint, key: str, handler: Answer, args: tuple[Any, ...]) -> None:
        found = self.objects.get(key)
        self._world.after(self._delay() / 2, caller.deliver, handler, (True, found, *args))

    def _page(
        self,
        caller: Endpoint,
        prefix: str,
        start: str,
        found: list[str],
        handler: Answer,
        args: tuple[Any, ...],
    ) -> None:
        if self._is_lost(caller) or self._random.random() < self.tearing:
            self._world.after(TIMEOUT_MS, caller.deliver, handler, (None, *args))
            return
        at = bisect_left(self._keys, max(prefix, start))
        page = [key for key in self._keys[at : at + PAGE_SIZE] if key.startswith(prefix)]
        found.extend(page)
        if len(page) == PAGE_SIZE:
            following = page[-1] + "\0"
            self._world.after(
                self._delay(), self._page, caller, prefix, following, found, handler, args
            )
        else:
            self._world.after(self._delay(), caller.deliver, handler, (found, *args))

    def _delete(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            self._keys.remove(key)
            self.on_deleted(key)

    def _is_lost(self, caller: Endpoint) -> bool:
        chance = self.refusal + self.unknown / 2
        return caller.broker_id in self.cut or self._random.random() < chance

    def _delay(self) -> float:
        delay_ms = 2.0 + self._random.random() * 10.0
        if self._random.random() < 0.03:
            delay_ms += self._random.random() * 60.0  # the long tail
        return delay_ms * self.delay_factor
