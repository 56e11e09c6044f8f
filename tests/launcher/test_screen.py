"""What is shown of a run in progress, as a picture and as a line."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from sheafgossip.metrics.events import Event
from sheafgossip.metrics.text import clock, size
from sheafgossip.metrics.watch.screen import Place, draw, line, sparkline
from sheafgossip.metrics.watch.snapshot import Snapshot

WARNING = "is above 1: " + "the maps may diverge " * 9
EVENTS = [Event(20.0, node, "warning", f"step {node} {WARNING}", f"client {node}") for node in range(4)]
EVENTS.append(Event(30.0, 7, "crash", "before round 12", "client 7"))
EVENTS.append(Event(35.0, 7, "restart", "takes part from round 15", "client 7"))
GOING = Snapshot(
    name="rotating 0.1", algorithm="sheaf-fmtl", state="running", clients=200, started=200, gone=2, rounds=2000,
    completed=(400, *[500] * 98, *[520] * 98, 1200), metric_name="accuracy", metric=0.9134,
    history=tuple((round, round / 2000) for round in range(0, 501, 20)), payload_bytes=12_400_000,
    payload_per_s=1_200_000.0, memory_bytes=412_000_000, memory_of=198, waited=0.34, waited_for="client 13",
    elapsed_s=41.0, left_s=3700.0, virtual_s=412.3, events=tuple(EVENTS),
    counts={"warning": 4, "crash": 1, "restart": 1}, cause="", behind=False,
)  # fmt: skip
STARTING = replace(
    GOING, state="starting", started=7, completed=(), metric=None, history=(), payload_bytes=0, payload_per_s=None,
    memory_bytes=None, memory_of=0, waited=None, waited_for=None, elapsed_s=0.0, left_s=None, virtual_s=None, events=(),
    counts={}, gone=0,
)  # fmt: skip


def shown(snapshot: Snapshot, width: int = 80, height: int = 24, place: Place = Place(), **options) -> str:
    console = Console(width=width, height=height, file=StringIO(), **options)
    console.print(draw(snapshot, place, width, height))
    return console.file.getvalue()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50)])
def test_everything_is_there(width, height):
    picture = shown(GOING, width, height, Place(6, 7))
    for part in (
        "rotating 0.1 · sheaf-fmtl · 6 of 7",
        "0:41 · about 62 min left",
        "400 · 500 · 1200 of 2000  least · median · most  2 gone",
        "20 %",
        "91.3 %",
        "12.4 MB",
        "1.20 MB/s",
        "412 MB    198 clients",
        "34 %      of the clients' time, longest for client 13",
        "412 s",
        "0:20  warning  client 3 and 3 more: step 3 is above 1",
        "0:30  crash    client 7: before round 12",
        "0:35  restart  client 7: takes part from round 15",
    ):
        assert part in picture


@pytest.mark.parametrize("snapshot", [GOING, STARTING, replace(GOING, completed=(), state="failed")])
@pytest.mark.parametrize(("width", "height"), [(200, 50), (80, 24), (20, 5), (40, 10), (80, 3), (1, 1)])
def test_it_fits_into_any_terminal(snapshot, width, height):
    lines = shown(snapshot, width, height).splitlines()
    assert max(map(len, lines)) <= max(1, width - 1)
    assert len(lines) <= max(1, height - 1)


def test_the_picture_is_as_high_at_the_start_as_later_and_a_failure_shows_its_cause():
    later = replace(GOING, virtual_s=None, events=())
    assert len(shown(STARTING).splitlines()) == len(shown(later).splitlines())
    assert "7 of 200 clients have started" in shown(STARTING)
    cause = "client 3 died in round 12: killed by SIGKILL"
    picture = shown(replace(GOING, state="failed", left_s=None, cause=cause))
    assert "failed after 0:41" in picture
    assert cause in picture


def test_the_bar_tells_what_all_and_what_some_have_done_and_the_clients_stand_above_their_place_on_it():
    half = replace(GOING, rounds=100, completed=(25, 50))
    bar = shown(half).splitlines()[4].split()[0]
    assert (bar.count("━"), bar.count("╍"), bar.count("─")) == (15, 16, 31)
    hill = shown(replace(GOING, rounds=100, completed=(50, *[100] * 7))).splitlines()[3][11:]
    assert (len(hill), hill[30], hill[61], hill.strip(" ▂█")) == (62, "▂", "█", "")


def test_without_colours_nothing_is_lost(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[38" not in shown(GOING, force_terminal=True)
    assert "━" in shown(GOING)


def test_the_sparkline_goes_as_far_as_the_rounds_that_are_evaluated():
    assert sparkline([(0, 0.0), (50, 1.0)], 100, 10) == "▁▁▁▁▁█"
    assert sparkline([(0, 0.5), (100, 0.5)], 100, 10) == "▁" * 10
    assert sparkline([(number, number) for number in range(1001)], 1000, 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([], 100, 10) == ""


def test_a_line_tells_the_same_in_short():
    assert line(GOING, Place(6, 7)) == (
        "rotating 0.1 (6 of 7): round 400 to 1200 of 2000, accuracy 91.3 %, 12.4 MB sent, 412 MB of memory, 1 crash,"
        " 1 restart, 4 warnings, 0:41, about 62 min left"
    )
    assert line(STARTING) == "rotating 0.1: 7 of 200 clients have started"
    assert line(replace(GOING, state="finished", counts={}, left_s=None, metric_name="mse")) == (
        "rotating 0.1: finished after 0:41, test MSE 0.9134, 12.4 MB sent"
    )
    assert line(replace(GOING, state="failed", counts={}, left_s=None, metric=None, payload_bytes=None)) == (
        "rotating 0.1: failed after 0:41, round 400 to 1200 of 2000"
    )


def test_sizes_have_three_digits_and_durations_are_read_at_a_glance():
    sizes = [0, 999, 1000, 9_994, 12_345, 999_499, 999_500, 1_234_000_000, 5e15]
    told = "0 B, 999 B, 1.00 kB, 9.99 kB, 12.3 kB, 999 kB, 1.00 MB, 1.23 GB, 5000 TB"
    assert ", ".join(map(size, sizes)) == told
    assert list(map(clock, (0, 59.9, 61, 3600, 36_061))) == ["0:00", "0:59", "1:01", "1:00:00", "10:01:01"]
