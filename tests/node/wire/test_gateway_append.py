"""The messages between a gateway and a leader."""

from __future__ import annotations

import random
from uuid import UUID

import pytest
from tidelog_core.errors import TooManyElements
from tidelog_core.records.batch import HEADER_SIZE
from tidelog_node.wire.gateway_append import (
    BYTES_MAX,
    HEADER_REST_SIZE,
    SLICES_MAX,
    GatewayAppend,
    GatewayResult,
    GatewaySlice,
    encode_answer,
    encode_request,
    header_rest,
    parse_answer,
    parse_request,
)
from tidelog_node.wire.primitives import PARSE_ERRORS, MalformedRequest

from tests.support.batches import batch

HEAD_SIZE = 14  # size, key, version, correlation id, client id's length
NAMES = (None, b"", b"a", "träger".encode(), b"x" * 4_096)


def request_of(count: int, seed: int = 0, *, has_headers: bool = False) -> GatewayAppend:
    chance = random.Random(seed)
    slices = [
        GatewaySlice(
            UUID(int=chance.getrandbits(128)),
            chance.getrandbits(31),
            (count - number) * 4_000_000,  # in any order
            HEADER_SIZE + chance.randrange(BYTES_MAX // count - HEADER_SIZE),
            chance.getrandbits(32),
            chance.randrange(14),
            chance.choice([-1, 0, 1]),
            chance.getrandbits(31),
            chance.choice(NAMES),
            chance.randbytes(HEADER_REST_SIZE) if has_headers else None,
        )
        for number in range(count)
    ]
    return GatewayAppend(UUID(int=chance.getrandbits(128)), 8, 7, slices)


def parsed(encoded: bytes, **limits: int) -> GatewayAppend:
    version = int.from_bytes(encoded[6:8], "big")
    return parse_request(memoryview(encoded), HEAD_SIZE, version, **limits)


@pytest.mark.parametrize("has_headers", [False, True])
@pytest.mark.parametrize("count", [1, 2, 50, SLICES_MAX])
def test_a_request_comes_back_as_it_was(count: int, has_headers: bool) -> None:
    request = request_of(count, seed=count, has_headers=has_headers)
    encoded = encode_request(request, 77)
    assert int.from_bytes(encoded[:4], "big") == len(encoded) - 4
    assert int.from_bytes(encoded[6:8], "big") == has_headers
    assert parsed(encoded) == request
    assert request.element_count == count
    assert request.has_headers == has_headers


def test_a_batch_is_made_of_the_header_and_zeros() -> None:
    sent = batch(3, producer_id=7, producer_epoch=1, base_sequence=5)
    (one,) = request_of(1, has_headers=True).slices
    one = one._replace(size_bytes=len(sent), header_rest=header_rest(sent))
    zeros = bytes(len(sent) - HEADER_SIZE)
    assert one.batch_of_zeros() == sent[:HEADER_SIZE] + zeros


def test_a_slice_smaller_than_its_header_is_refused() -> None:
    request = request_of(1, has_headers=True)
    for size_bytes in (0, 1, HEADER_SIZE - 1):
        wrong = request._replace(slices=[request.slices[0]._replace(size_bytes=size_bytes)])
        with pytest.raises(MalformedRequest):
            parsed(encode_request(wrong, 1))


@pytest.mark.parametrize("has_headers", [False, True])
def test_a_cut_or_longer_request_is_refused(has_headers: bool) -> None:
    encoded = encode_request(request_of(3, has_headers=has_headers), 1)
    for end in range(HEAD_SIZE, len(encoded)):
        with pytest.raises(PARSE_ERRORS):
            parsed(encoded[:end])
    with pytest.raises(PARSE_ERRORS):
        parsed(encoded + b"\0")


def test_limits_are_kept() -> None:
    request = request_of(1)
    for wrong in (
        request._replace(slices=()),
        request._replace(slices=request_of(SLICES_MAX + 1).slices),
        request._replace(sequence=8),
        request._replace(sequence=-1),
        request._replace(slices=[request.slices[0]._replace(transactional_id=b"x" * 4_097)]),
    ):
        with pytest.raises(PARSE_ERRORS):
            parsed(encode_request(wrong, 1))
    with pytest.raises(TooManyElements):
        parsed(encode_request(request_of(3), 1), elements_max=2)


def test_an_answer_comes_back_as_it_was() -> None:
    results = [GatewayResult(0, 1 << 40, True), GatewayResult(6, -1, False)]
    encoded = b"".join(encode_answer(5, results))
    assert encoded[:8] == (len(encoded) - 4).to_bytes(4, "big") + (5).to_bytes(4, "big")
    assert parse_answer(memoryview(encoded)[8:], 2) == results
    for count in (1, 3):
        with pytest.raises(ValueError, match="results of"):
            parse_answer(memoryview(encoded)[8:], count)


@pytest.mark.parametrize(("has_headers", "part"), [(False, 0.0035), (True, 0.0063)])
def test_a_slice_costs_few_bytes_between_zones(has_headers: bool, part: float) -> None:
    """At 16 KiB, the default size of a client's batch, that is 0.3 % of the records."""
    sizes = []
    for count in (100, 200):
        request = request_of(count, has_headers=has_headers)
        slices = [one._replace(transactional_id=None) for one in request.slices]
        answer = encode_answer(1, [GatewayResult(0, 1, True)] * count)
        sizes.append(len(encode_request(request._replace(slices=slices), 1)))
        sizes[-1] += sum(map(len, answer))
    assert (sizes[1] - sizes[0]) / 100 <= part * 16_384


def sliced(*places: tuple[int, int]) -> bytes:
    """Return a request with slices at these positions, of these sizes."""
    (one,) = request_of(1).slices
    slices = [one._replace(position=at, size_bytes=size) for at, size in places]
    return encode_request(request_of(1)._replace(slices=slices), 1)


def test_a_request_cannot_have_the_same_bytes_read_again_and_again() -> None:
    whole = (112, BYTES_MAX)
    for wrong in (
        [whole] * SLICES_MAX,
        [whole, whole],
        [(112, 10), (121, 10)],
        [(121, 10), (112, 10)],
        [(112, 0)],
        [(112, 10), (115, 0)],
    ):
        with pytest.raises(MalformedRequest, match="overlap"):
            parsed(sliced(*wrong))
    assert parsed(sliced((122, 10), (112, 10))).element_count == 2


def test_the_slices_of_a_request_are_bounded_together() -> None:
    """One alone may be as large as a client's batch."""
    half = BYTES_MAX // 2
    assert parsed(sliced((0, half), (half, half))).element_count == 2
    assert parsed(sliced((0, 2 * BYTES_MAX))).element_count == 1
    with pytest.raises(MalformedRequest, match="allowed are"):
        parsed(sliced((0, half), (half, half + 1)))
