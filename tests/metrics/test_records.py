"""Records on the wire: what is packed comes out the same, and nothing else comes in."""

from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sheafgossip.metrics.records import (
    TABLES,
    Batch,
    End,
    MalformedRecords,
    TrafficRecord,
    columns,
    pack_batch,
    pack_end,
    unpack,
)

integers = st.integers(-(2**63), 2**63 - 1)
by_annotation = {
    int: integers,
    int | None: st.none() | integers,
    float: st.floats(allow_nan=False),
    float | None: st.none() | st.floats(allow_nan=False),
    str: st.text(max_size=20),
}
records = st.one_of(
    *(st.builds(c, **{name: by_annotation[type_] for name, type_ in columns(c).items()}) for c in TABLES.values())
)
traffic = TrafficRecord(0, 1, 2, 3, 4, 5, 6)


@given(integers, integers, st.lists(records, max_size=5))
def test_a_batch_and_an_end_come_out_as_they_were_packed(sender, sequence, given_records):
    rows = unpack(pack_batch(sender, sequence, given_records))
    assert (rows.sender, rows.sequence) == (sender, sequence)
    for name, record_class in TABLES.items():
        expected = [list(record) for record in given_records if type(record) is record_class]
        assert rows.tables.get(name, []) == expected
        assert [[*map(type, row)] for row in rows.tables.get(name, [])] == [[*map(type, row)] for row in expected]
    assert unpack(pack_end({sender: sequence})) == End({sender: sequence})


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5)
trees = st.recursive(leaves, lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=3), inner))


@given(st.binary(max_size=200) | trees.map(msgpack.packb))
def test_bytes_of_another_meaning_are_a_batch_or_raise_only_malformed_records(message):
    with suppress(MalformedRecords):
        assert isinstance(unpack(message), Batch | End)


@given(st.lists(records, min_size=1, max_size=3), st.data())
def test_a_message_that_was_cut_short_is_malformed(given_records, data):
    packed = pack_batch(1, 2, given_records)
    length = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(MalformedRecords):
        unpack(packed[:length])


@pytest.mark.parametrize(
    "body",
    [
        [0, 0, ""],
        [0, 0, [[]]],
        [0, 0, [[99, 1]]],
        [0, 0, [[-1, 1]]],
        [0, 0, [[True, 0, 0, 0, 0, 0, 0, 0, 0]]],
        [0.0, 0, []],
        [True, 0, []],
        ["end", {"0": 1}],
        ["end", [[0, None]]],
    ],
    ids=repr,
)
def test_bodies_that_no_writer_packs_are_malformed(body):
    with pytest.raises(MalformedRecords):
        unpack(msgpack.packb(body))


@pytest.mark.parametrize(
    "values", [*([odd, 1, 2, 3, 4, 5, 6] for odd in ("1", None, 1.5, True, [1], 2**63)), [*traffic, 7]], ids=repr
)
def test_fields_that_are_not_those_of_the_columns_are_malformed(values):
    row = [list(TABLES).index("traffic"), *values]
    with pytest.raises(MalformedRecords):
        unpack(msgpack.packb([0, 0, [row]]))
