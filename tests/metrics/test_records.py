"""Records on the wire: what is packed comes out the same, and nothing else comes in."""

from typing import get_args

import msgpack
import pytest
from hypothesis import given, strategies as st

from sheafgossip.metrics.records import COLUMNS, TABLES, End, MalformedRecords, pack_batch, pack_end, unpack

integers, floats = st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)
by_type = {int: integers, float: floats, str: st.text(max_size=20), type(None): st.none()}
records = st.one_of(
    st.builds(
        TABLES[name], **{k: st.one_of(*(by_type[t] for t in get_args(kind) or [kind])) for k, kind in types.items()}
    )
    for name, types in COLUMNS.items()
)


@given(integers, integers, st.lists(records, max_size=5), st.data())
def test_a_batch_and_an_end_come_out_as_they_were_packed_and_not_at_all_where_cut_short(sender, sequence, packed, data):
    message = pack_batch(sender, sequence, packed)
    rows = unpack(message)
    assert (rows.sender, rows.sequence) == (sender, sequence)
    for name, record_class in TABLES.items():
        expected = [list(record) for record in packed if type(record) is record_class]
        assert rows.tables.get(name, []) == expected
        assert [[*map(type, row)] for row in rows.tables.get(name, [])] == [[*map(type, row)] for row in expected]
    assert unpack(pack_end({sender: sequence})) == End({sender: sequence})
    with pytest.raises(MalformedRecords):
        unpack(message[: data.draw(st.integers(0, len(message) - 1))])


TRAFFIC = list(TABLES).index("traffic")
MALFORMED = [
    *([0, 0, ""], [0.0, 0, []], [True, 0, []], ["end", {"0": 1}], ["end", [[0, None]]], ["end", [[True, 1]]]),
    *([0, 0, [row]] for row in ([], [99, 1], [-1, 1], [True, *[0] * 8], [TRAFFIC, *range(8)])),
    *([0, 0, [[TRAFFIC, odd, 1, 2, 3, 4, 5, 6]]] for odd in ("1", None, 1.5, True, [1], 2**63)),
]


@pytest.mark.parametrize("body", MALFORMED, ids=repr)
def test_what_no_writer_packs_is_malformed(body):
    with pytest.raises(MalformedRecords):
        unpack(msgpack.packb(body))
