"""Headers and tensors: what is packed comes out the same, nothing else comes in. test_keys.py counts ZMTP's bytes."""

import math
from collections.abc import Callable

import msgpack
import numpy as np
import pytest
from hypothesis import example, given, strategies as st

import made
from sheafgossip.transport.wire import HeaderReader, Rejected, layout_of, pack_header, unpack_header, view_tensor

# position: the code on the wire
DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8", "int8", "uint16")

numbers = st.integers(0, 2**31)
headers = st.tuples(st.integers(0, 2**64 - 1), numbers, numbers, numbers, numbers)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
tensors = st.builds(
    lambda dtype, shape: np.arange(math.prod(shape)).astype(dtype).reshape(shape), st.sampled_from(DTYPES), shapes
)
scalars = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.booleans(), st.none(), st.floats(), st.text(max_size=4), st.binary(max_size=4)
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=8)
lengths = st.sampled_from([0, 1, 2, 70, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1])


def packed(header: tuple[int, ...], *shape: int, dtype: str = "f4") -> bytes:
    """With one tensor."""
    return pack_header(*header, ((np.dtype(dtype), shape),))


def or_damaged(frames: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return frames | st.builds(made.damaged, st.randoms(use_true_random=False), frames)


@given(headers, st.lists(tensors, max_size=3).map(tuple))
def test_headers_and_tensors_come_out_as_they_were_packed(header, given_tensors):
    unpacked, layout = unpack_header(pack_header(*header, layout_of(given_tensors)), len(given_tensors))
    assert tuple(unpacked) == header
    for tensor, form in zip(given_tensors, layout, strict=True):
        np.testing.assert_array_equal(view_tensor(tensor.tobytes(), form), tensor, strict=True)


def test_tensors_travel_as_little_endian_numbers():
    for code, name in enumerate(DTYPES):
        frame = bytes(range(1, 1 + np.dtype(name).itemsize))
        [form] = unpack_header(msgpack.packb([1, 0, 0, 0, 0, 0, [[code, 1]]]), 1)[1]
        assert view_tensor(frame, form) == np.frombuffer(frame, np.dtype(name).newbyteorder("<"))


@pytest.mark.parametrize("dtype", [">f4", "bool", "complex64", "object", "<U3"])
def test_a_dtype_that_does_not_travel_is_refused_with_those_that_do(dtype):
    with pytest.raises(TypeError, match=r"do not travel; use one of float32, float64"):
        packed((0, 0, 0, 0, 0), 2, dtype=dtype)


def test_the_header_of_a_realistic_message_takes_at_most_64_bytes():
    assert len(packed((2**64 - 1, 99_999, 99_998, 10_000_000, 1000), 100_000)) <= 64


def is_legal(body, frames: int) -> bool:
    """What a header is, said once more."""

    def are_counts(values) -> bool:
        return all(type(value) is int and value >= 0 for value in values)

    return (
        type(body) is list
        and len(body) == 7
        and are_counts(body[:6])
        and body[0] == 1
        and type(body[6]) is list
        and len(body[6]) == frames
        and all(type(entry) is list and entry and are_counts(entry) and entry[0] < 8 for entry in body[6])
    )


def found_by(read: Callable, *arguments: object) -> object:
    """What is read, or the reason that it is not; anything but Rejected passes through and fails the test."""
    try:
        return read(*arguments)
    except Rejected as rejected:
        return rejected.reason


def frame_of(*changed: tuple[int, object]) -> bytes:
    """A legal header with other values in some places."""
    body = [1, 77, 0, 1, 3, 0, [[0, 10]]]
    for place, value in changed:
        body[place] = value
    return msgpack.packb(body)


@given(
    or_damaged(headers.map(lambda header: packed(header, 1000)))
    | st.binary(max_size=300)
    | st.builds(frame_of, st.tuples(st.integers(0, 6), values)),
    st.integers(0, 3),
)
@example(frame_of((0, True)), 1)
@example(frame_of((0, 1.0)), 1)
@example(frame_of((3, -1)), 1)
@example(frame_of((6, "")), 1)
@example(frame_of((6, [b"\x00\x05"])), 1)
@example(frame_of((6, [[]])), 1)
@example(packed((0, 0, 0, 0, 0), *[1] * 243), 1)  # 255 bytes, the most allowed
@example(packed((0, 0, 0, 0, 0), *[1] * 244), 1)
def test_arbitrary_damaged_or_cut_bytes_raise_nothing_but_rejected(frame, frames):
    try:
        body = msgpack.unpackb(frame)
    except Exception:
        body = None
    accepted = type(found_by(unpack_header, frame, frames)) is tuple
    assert accepted == (len(frame) <= 255 and is_legal(body, frames))


few = st.integers(0, 2)
similar = st.builds(
    lambda header, shape: packed(header, *shape),
    st.tuples(few, few, few, few, few),
    st.sampled_from([(2,), (3,), (1, 2)]),
)


@given(st.lists(st.tuples(or_damaged(similar), few, few), max_size=30))
@example([(packed((1, 0, 1, 2, 0), 2), 0, frames) for frames in (1, 2, 0, 1)])
def test_what_was_read_before_changes_nothing_of_what_is_read(messages):
    reader = HeaderReader(1, 1)
    for frame, src, frames in messages:
        expected = found_by(unpack_header, frame, frames)
        if type(expected) is tuple:
            (run, *ends, round, phase), layout = expected
            expected = (round, phase, layout) if ends == [src, 1] else "wrong source or destination"
            expected = expected if run == 1 else "foreign run id"
        assert found_by(reader.read, src, frame, frames) == expected


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (0, 2, "unknown protocol version"),
        (6, [[8, 10]], "unknown dtype"),
        (6, [[-1, 10]], "unknown dtype"),
        (6, [[0, -10]], "malformed header"),
        (6, [], "malformed header"),
        (6, [[0, 10], [0, 10]], "malformed header"),
        (6, {0: 10}, "malformed header"),
    ],
)
def test_each_kind_of_illegal_header_has_its_reason(place, value, reason):
    assert found_by(unpack_header, frame_of((place, value)), 1) == reason


@given(st.lists(lengths, max_size=80).map(tuple), st.sampled_from([b"", b"\0" * 4, b"\0" * 8]))
@example((0, 2**63), b"")
@example((2**64 - 1, 0), b"")
@example((0, 2**62, 2**62), b"")
@example((1,) * 70, b"\0" * 4)
@example((2**32, 2**32), b"")  # 2**64 elements: none in 64 bits
@example((2**31, 2**31, 4), b"")
def test_a_hostile_shape_raises_nothing_but_rejected(shape, frame):
    received = found_by(view_tensor, frame, (np.dtype("<f4"), shape))
    if isinstance(received, str):
        assert received == "wrong shape"
    else:
        assert received.shape == shape
        assert math.prod(shape) * 4 == len(frame)
