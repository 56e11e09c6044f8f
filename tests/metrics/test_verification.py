"""Recorded bytes against the kernel's counters, over databases that are made up here."""

from collections.abc import Callable
from pathlib import Path

import pytest

from made import write
from sheafgossip.metrics.records import KernelRecord, OverheadRecord, Record, TrafficRecord
from sheafgossip.metrics.verification import compare_with_kernel, verify_run

TO_1, TO_0 = 64 + 52 + 18 + 2_632 + 2_700, 64 + 52 + 18 + 1_300
TRAFFIC = TrafficRecord(0, 1, 1, 1, 2_600, 2_621, 2_632)
END_AT_0 = KernelRecord(0, "127.0.0.1:5000", "127.0.0.1:4001", TO_1, TO_0)
END_AT_1 = KernelRecord(1, "127.0.0.1:4001", "127.0.0.1:5000", TO_0, TO_1)
RECORDS: list[Record] = [
    *(
        OverheadRecord(src, dst, kind, 0, size)
        for src, dst in ((0, 1), (1, 0))
        for kind, size in (("greeting", 64), ("ready", 52), ("hello", 18))
    ),
    TRAFFIC,
    TrafficRecord(0, 1, 2, 1, 2_668, 2_689, 2_700),
    TrafficRecord(1, 0, 1, 1, 1_268, 1_289, 1_300),
    OverheadRecord(0, -2, "records", 3, 900),
    OverheadRecord(-3, 0, "control", 5, 300),
    END_AT_0,
    END_AT_1,
]


@pytest.fixture
def folder(tmp_path) -> Callable[..., Path]:
    """A run's folder that holds the records above, some of them left out and others put in."""

    def folder(*, without: tuple[Record, ...] = (), plus: tuple[Record, ...] = ()) -> Path:
        path = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        return write(path, *(record for record in RECORDS if record not in without), *plus)

    return folder


def test_a_connection_agrees_when_records_and_both_ends_say_the_same(folder):
    comparison = compare_with_kernel(folder())
    assert [(str(one), one.counted, one.sent, one.received, one.agrees) for one in comparison.directions] == [
        ("0 -> 1", TO_1, TO_1, TO_1, True),
        ("1 -> 0", TO_0, TO_0, TO_0, True),
    ]
    assert (comparison.connections, comparison.differing, comparison.loose_ends) == (1, (), ())


@pytest.mark.parametrize(
    ("original", "change"),
    [
        (TRAFFIC, {"wire_bytes": TRAFFIC.wire_bytes + 1}),
        (END_AT_0, {"bytes_sent": TO_1 - 1}),
        (END_AT_1, {"bytes_received": TO_1 + 1}),
    ],
    ids=["recorded", "sent", "received"],
)
def test_one_byte_off_in_any_count_differs_on_that_direction_alone(folder, original, change):
    comparison = compare_with_kernel(folder(without=(original,), plus=(original._replace(**change),)))
    assert [str(one) for one in comparison.differing] == ["0 -> 1"]


def test_an_end_without_a_counter_leaves_the_other_end_loose_and_both_directions_unproven(folder):
    comparison = compare_with_kernel(folder(without=(END_AT_1,)))
    assert [(one.counted, one.sent, one.received) for one in comparison.differing] == [
        (TO_1, None, None),
        (TO_0, None, None),
    ]
    assert [str(end) for end in comparison.loose_ends] == ["0 -> ? (127.0.0.1:5000 to 127.0.0.1:4001)"]


def test_a_connection_without_any_record_of_ours_differs(folder):
    ends = (
        KernelRecord(0, "127.0.0.1:5001", "127.0.0.1:4002", 134, 134),
        KernelRecord(2, "127.0.0.1:4002", "127.0.0.1:5001", 134, 134),
    )
    comparison = compare_with_kernel(folder(plus=ends))
    assert [(str(one), one.counted, one.sent) for one in comparison.differing] == [
        ("0 -> 2", 0, 134),
        ("2 -> 0", 0, 134),
    ]


def test_two_connections_of_one_pair_are_counted_together(folder):
    again = (
        KernelRecord(0, "127.0.0.1:5001", "127.0.0.1:4001", 134, 134),
        KernelRecord(1, "127.0.0.1:4001", "127.0.0.1:5001", 134, 134),
    )
    opened = tuple(OverheadRecord(src, dst, "hello", 1, 134) for src, dst in ((0, 1), (1, 0)))
    assert compare_with_kernel(folder(plus=again + opened)).differing == ()


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


def test_a_run_without_connections_proves_nothing(folder):
    empty = folder(without=tuple(RECORDS))
    assert verify_run("10 floats", empty, empty).complaints == ["10 floats: no connection was recorded"]
