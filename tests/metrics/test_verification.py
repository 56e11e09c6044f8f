"""Recorded bytes against the kernel's counters, over databases that are made up here."""

import pytest

from made import write
from sheafgossip.metrics.records import KernelRecord, OverheadRecord, TrafficRecord
from sheafgossip.metrics.verification import compare_with_kernel, verify_run

OPENED = {"greeting": 64, "ready": 52, "hello": 18}
TO_1, TO_0 = 64 + 52 + 18 + 2_632 + 2_700, 64 + 52 + 18 + 1_300
TRAFFIC = TrafficRecord(0, 1, 1, 1, 2_600, 2_621, 2_632)
END_AT_0 = KernelRecord(0, "127.0.0.1:5000", "127.0.0.1:4001", TO_1, TO_0)
END_AT_1 = KernelRecord(1, "127.0.0.1:4001", "127.0.0.1:5000", TO_0, TO_1)
RECORDS = [
    *(OverheadRecord(src, 1 - src, kind, 0, size) for src in (0, 1) for kind, size in OPENED.items()),
    *(TRAFFIC, TrafficRecord(0, 1, 2, 1, 2_668, 2_689, 2_700), TrafficRecord(1, 0, 1, 1, 1_268, 1_289, 1_300)),
    *(OverheadRecord(0, -2, "records", 3, 900), OverheadRecord(-3, 0, "control", 5, 300), END_AT_0, END_AT_1),
]


@pytest.fixture
def folder(tmp_path):
    """A run's folder that holds the records above, some of them left out and others put in."""

    def folder(*, without=(), plus=()):
        path = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        return write(path, *(record for record in RECORDS if record not in without), *plus)

    return folder


def again(other: int) -> tuple[KernelRecord, KernelRecord]:
    """Another connection of client 0, over which nothing but its opening went."""
    here, there = "127.0.0.1:5001", "127.0.0.1:4002"
    return KernelRecord(0, here, there, 134, 134), KernelRecord(other, there, here, 134, 134)


def test_a_connection_agrees_when_records_and_both_ends_say_the_same(folder):
    comparison = compare_with_kernel(folder())
    directions = [(str(one), *one[2:]) for one in comparison.directions]
    assert directions == [("0 -> 1", TO_1, TO_1, TO_1), ("1 -> 0", TO_0, TO_0, TO_0)]
    assert (comparison.connections, comparison.differing, comparison.loose_ends) == (1, (), ())
    opened = tuple(OverheadRecord(src, 1 - src, "hello", 1, 134) for src in (0, 1))
    assert compare_with_kernel(folder(plus=again(1) + opened)).differing == ()  # two of one pair count together


@pytest.mark.parametrize(
    ("without", "plus", "differing"),
    [
        (TRAFFIC, (TRAFFIC._replace(wire_bytes=2_633),), [(0, 1, TO_1 + 1, TO_1, TO_1)]),
        (END_AT_0, (END_AT_0._replace(bytes_sent=TO_1 - 1),), [(0, 1, TO_1, TO_1 - 1, TO_1)]),
        (END_AT_1, (END_AT_1._replace(bytes_received=TO_1 + 1),), [(0, 1, TO_1, TO_1, TO_1 + 1)]),
        (END_AT_1, (), [(0, 1, TO_1, None, None), (1, 0, TO_0, None, None)]),
        (None, again(2), [(0, 2, 0, 134, 134), (2, 0, 0, 134, 134)]),
    ],
    ids=["one byte recorded", "sent", "received", "an end without a counter", "no record of ours"],
)
def test_what_is_off_differs_on_its_direction_alone(folder, without, plus, differing):
    comparison = compare_with_kernel(folder(without=(without,), plus=plus))
    assert [tuple(one) for one in comparison.differing] == differing
    assert comparison.loose_ends == (() if plus else ("0 -> ? (127.0.0.1:5000 to 127.0.0.1:4001)",))


def test_complaints_name_the_run_and_the_connections(folder):
    assert verify_run("10 floats", folder(), folder(without=(END_AT_0, END_AT_1))).complaints == []
    other = folder(without=(TRAFFIC,), plus=(TRAFFIC._replace(wire_bytes=2_633),))
    foreign = KernelRecord(1, "127.0.0.1:4001", "127.0.0.1:7777", 64, 10)
    off = folder(without=(END_AT_0,), plus=(END_AT_0._replace(bytes_sent=1), foreign))
    assert verify_run("10 floats", off, other).complaints == [
        "10 floats: the recorded bytes are not the kernel's on 0 -> 1",
        "10 floats: no client has the other end of 1 -> ? (127.0.0.1:4001 to 127.0.0.1:7777)",
        "10 floats: the recorded bytes over ipc are not those over tcp on 0 -> 1",
    ]
    empty = folder(without=tuple(RECORDS))
    assert verify_run("10 floats", empty, empty).complaints == ["10 floats: no connection was recorded"]
