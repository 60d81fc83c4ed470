"""The heir's side of a chain: finds its end, and seals it there.

1. List the chain from a sequence on that is known to have existed. Read the last object's header:
   all objects below its *committed end* have existed. Read the headers from there on.
2. Walk from the greatest committed end on. Data: go on. A seal: go to 4. Nothing: put a seal
   there if absent.
3. If another object took the key, read it, and go on with 2.
4. If the seal is stored, or one was found, list again. The seal counts unless the header of a later
   object says that an object had existed at its sequence. In that case the owner had collected that
   object before the late seal came; the seal ends nothing, and the walk goes on from the greater
   committed end.

Two heirs at once do the same, and find the same end. No clock decides anything. A torn or stale
listing only costs another round, because step 4 checks the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidelog_core.back_off import back_off_seconds
from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.rules import ChainRules
from tidelog_core.diskless.chain.steady_time import SteadyTime
from tidelog_core.diskless.wal.header import NO_HEADER_CRC, WalHeader
from tidelog_core.metadata.epoch_chains import ChainName

ROUNDS_MAX = 64  # an owner that is still so much faster is alive: give up
HEADERS_MAX = 1_024  # read in one round; owners have far fewer objects above a committed end
RETRY_MS_FIRST, RETRY_MS_MAX = 50.0, 1_000.0


class ListChain(NamedTuple):
    """List the chain's ``.wal`` objects from this sequence on; then ``on_listed``."""

    start: int


class ReadHeaders(NamedTuple):
    """Read these headers; then ``on_header`` for each."""

    sequences: tuple[int, ...]


class PutSeal(NamedTuple):
    """Put a seal with this place if absent; then ``on_seal_put``."""

    sequence: int
    previous_crc: int


class Sealed(NamedTuple):
    """The chain has ended: data objects below ``end`` are committed, nothing else ever will be."""

    end: int


class StillOpen(NamedTuple):
    """The chain has no seal; only an answer to a sealer that may not put one."""

    end: int


class GivenUp(NamedTuple):
    """The chain was not sealed."""

    reason: str


SealerDecision = ListChain | ReadHeaders | PutSeal | Sealed | StillOpen | GivenUp


class ChainSealer:
    """Seals one chain. Used by one task; every decision is answered by one event, or more."""

    def __init__(
        self,
        chain: ChainName,
        *,
        known_end: int = 0,
        now_ms: float,
        may_seal: bool = True,
        rules: ChainRules | None = None,
    ) -> None:
        """Without ``may_seal`` it only finds out whether and where the chain has ended."""
        self.chain = chain
        self._may_seal = may_seal
        self.end: int | None = None  # the seal's sequence, once the chain has ended
        self._rules = rules or ChainRules()
        self._known_end = known_end  # every lower sequence has existed
        self._time = SteadyTime(now_ms)
        self._headers: dict[int, WalHeader] = {}  # of the objects that exist
        self._listed: tuple[int, ...] = ()
        self._wanted: set[int] = set()  # headers under way
        self._sealing: int | None = None
        self._seen_seal: int | None = None  # it was there before this round's listing began
        self._rounds = 0
        self._failures = 0
        self._retry_ms: float | None = None

    def start(self) -> list[SealerDecision]:
        """Begin, or begin again."""
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            return [GivenUp(f"not sealed after {ROUNDS_MAX} rounds: its owner is alive")]
        self._headers.clear()
        self._wanted.clear()
        self._sealing = None
        self._retry_ms = None
        return [ListChain(self._known_end)]

    def on_listed(self, sequences: Sequence[int]) -> list[SealerDecision]:
        """The listing is complete: these sequences exist, in order."""
        self._failures = 0
        self._listed = tuple(sequences)
        if not sequences:
            return self._walk()
        return self._read(sequences[-1:])

    def on_failed(self, now_ms: float) -> list[SealerDecision]:
        """A listing was torn, or it or a header could not be read: begin again after a while."""
        self._failures += 1
        delay_ms = back_off_seconds(self._failures - 1, first=RETRY_MS_FIRST, longest=RETRY_MS_MAX)
        self._retry_ms = self._time.advance(now_ms) + delay_ms
        self._wanted.clear()
        return []

    def on_header(self, sequence: int, header: WalHeader | None) -> list[SealerDecision]:
        """A header, ``None`` if there is no such object."""
        if sequence not in self._wanted:
            return []
        self._wanted.discard(sequence)
        if header is None:
            if self._sealing == sequence:
                return self._seal(sequence)
            # It was listed and is gone: its owner has collected it, and goes on.
            return self.start()
        self._headers[sequence] = header
        if self._wanted:
            return []
        if self._sealing is not None:
            self._sealing = None
            return self._walk()
        return self._read_above_known_end()

    def on_seal_put(
        self, sequence: int, outcome: PutOutcome, now_ms: float
    ) -> list[SealerDecision]:
        """The seal's PUT was answered, or given up."""
        if self._sealing != sequence:
            return []
        if outcome is PutOutcome.STORED:
            self._seen_seal = sequence
            return self.start() if self._rules.confirms_stored_seals() else self._end_at(sequence)
        if outcome is PutOutcome.THROTTLED:
            return self.on_failed(now_ms)
        self._wanted.add(sequence)
        return [ReadHeaders((sequence,))]

    def tick(self, now_ms: float) -> list[SealerDecision]:
        """Time has passed."""
        now = self._time.advance(now_ms)
        if self._retry_ms is None or now < self._retry_ms:
            return []
        return self.start()

    def delay_ms(self, now_ms: float) -> float | None:
        """Return after how many milliseconds ``tick`` has something to do, ``None`` for never."""
        if self._retry_ms is None:
            return None
        return max(0.0, self._retry_ms - self._time.advance(now_ms))

    # -- one round --

    def _read_above_known_end(self) -> list[SealerDecision]:
        """Read every header that is listed from the known end on; then walk."""
        self._known_end = self._rules.known_end(self._known_end, self._headers.values())
        missing = [n for n in self._listed if n >= self._known_end and n not in self._headers]
        return self._read(missing[:HEADERS_MAX]) if missing else self._walk()

    def _read(self, sequences: Sequence[int]) -> list[SealerDecision]:
        self._wanted.update(sequences)
        return [ReadHeaders(tuple(sequences))]

    def _walk(self) -> list[SealerDecision]:
        sequence = self._rules.known_end(self._known_end, self._headers.values())
        while header := self._headers.get(sequence):
            if self._rules.is_end(header):
                if self._seen_seal == sequence or not self._rules.confirms_found_seals():
                    return self._end_at(sequence)
                self._seen_seal = sequence
                return self.start()
            sequence += 1
        return self._seal(sequence)

    def _end_at(self, sequence: int) -> list[SealerDecision]:
        self.end = sequence
        return [Sealed(sequence)]

    def _seal(self, sequence: int) -> list[SealerDecision]:
        if not self._may_seal:
            return [StillOpen(sequence)]
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            return [GivenUp(f"not sealed after {ROUNDS_MAX} rounds: its owner is alive")]
        self._sealing = sequence
        before = self._headers.get(sequence - 1)
        return [PutSeal(sequence, NO_HEADER_CRC if before is None else before.crc)]
