"""Traces say what their rows say, at every moment; and who takes part in which round of a plan follows from them."""

import csv
import importlib.util
import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import sheafgossip as sg
from sheafgossip.launcher.planner.scenario import Fault
from sheafgossip.launcher.planner.simulation import simulate
from sheafgossip.launcher.planner.traces import ClientTrace, PiecewiseConstant, TraceSection, read_traces
from sheafgossip.topology.errors import UserError

from .scenarios import small

EXAMPLES = Path(__file__).parents[3] / "examples"
COLUMNS = ("client", "from", "until", "available", "up", "down", "speed")
OTHERWISE = {"available": 1.0, "up": 0.0, "down": 0.0, "speed": 1.0}  # 0: as without a trace
Row = dict[str, float | None]


def random_rows(rng: random.Random, clients: int) -> list[Row]:
    """Of each client, in any order; those about one thing do not overlap."""
    rows = []
    for client in range(clients):
        for columns in rng.choice([[COLUMNS[3:]], [("available",), ("up", "speed")], [("down",)]]):
            moments = sorted(rng.sample(range(20), 2 * rng.randint(1, 4)))
            spans = [*zip(moments[::2], moments[1::2], strict=True)]
            if rng.random() < 0.2:
                spans.append((spans[-1][1] + 1, None))
            for since, until in spans:
                told = {"available": rng.randint(0, 1), **{name: rng.randint(1, 9) / 4 for name in COLUMNS[4:]}}
                told = {name: told[name] if name in columns and rng.random() < 0.9 else None for name in told}
                if any(value is not None for value in told.values()):
                    rows.append({"client": client, "from": since, "until": until, **told})
    rng.shuffle(rows)
    return rows


def write(path: Path, rows: list[Row]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def told(rows: list[Row], client: int, name: str, now: float, *, repeat: bool) -> float:
    """What the rows of a client say at a moment."""
    own = [row for row in rows if row["client"] == client]
    ends = [row["until"] for row in own if row["until"] is not None]
    now = now % max(ends) if repeat and ends else now
    for row in own:
        if row["from"] <= now < (math.inf if row["until"] is None else row["until"]) and row[name] is not None:
            return row[name]
    return OTHERWISE[name]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), repeat=st.booleans(), scale=st.sampled_from([0.25, 1.0, 8.0]))
def test_a_trace_says_at_every_moment_what_the_row_of_that_moment_says(seed, repeat, scale, tmp_path_factory):
    rng = random.Random(seed)
    rows = random_rows(rng, clients=3)
    path = write(tmp_path_factory.getbasetemp() / "rows.csv", rows)
    traces = read_traces(TraceSection(path, repeat=repeat, scale=scale), 3, 0)
    for client in range(3):
        for name in OTHERWISE:
            function = getattr(traces.get(client, ClientTrace()), name) or PiecewiseConstant((0.0,), (OTHERWISE[name],))
            for now in (*range(0, 70, 3), rng.uniform(0, 60)):
                value, until = function.at(scale * now)
                assert value == told(rows, client, name, now, repeat=repeat)
                assert until > scale * now
                for later in range(math.floor(now) + 1, math.ceil(min(until / scale, 70))):
                    assert told(rows, client, name, later, repeat=repeat) == value


@settings(deadline=None)
@given(seed=st.integers(0, 10**6))
def test_what_passes_at_a_rate_that_changes_is_the_area_below_it(seed):
    rng = random.Random(seed)
    moments = sorted({0, *(rng.randint(1, 20) for _ in range(4))})
    rate = PiecewiseConstant(tuple(map(float, moments)), tuple(rng.choice([0.0, 1.0, 2.0, 4.0]) for _ in moments), 25.0)
    since, end = rng.randint(0, 200) / 4, rng.randint(0, 400) / 4
    since, end = min(since, end), max(since, end)
    area = sum((rate.at(since + step / 4)[0] or 0.5) / 4 for step in range(round((end - since) * 4)))
    assert rate.passed(area, since, otherwise=0.5) == end


def test_a_trace_of_more_or_fewer_clients_is_dealt_out(tmp_path):
    path = write(tmp_path / "t.csv", [{"client": n, "from": 0, "until": 1, "speed": n} for n in (3, 5, 9)])

    def dealt(how: str, clients: int, seed: int = 0) -> list[float]:
        traces = read_traces(TraceSection(path, how), clients, seed)
        return [traces[client].speed.at(0.0)[0] for client in range(clients)]

    assert dealt("round-robin", 7) == [3, 5, 9, 3, 5, 9, 3]
    assert dealt("round-robin", 2) == [3, 5]
    assert list(read_traces(TraceSection(path), 10, 0)) == [3, 5, 9]
    drawn = [dealt("random", 6, seed) for seed in range(20)]
    assert all(sorted(each[:3]) == sorted(each[3:]) == [3, 5, 9] for each in drawn)
    assert len(set(map(tuple, drawn))) > 5
    assert dealt("random", 6, 7) == drawn[7]


def test_parquet_says_the_same_as_csv_and_is_refused_where_it_is_damaged(tmp_path):
    pytest.importorskip("pyarrow", reason="reads Parquet")
    pandas = pytest.importorskip("pandas")
    path, other = write(tmp_path / "t.csv", random_rows(random.Random(1), 4)), tmp_path / "t.parquet"
    pandas.read_csv(path).to_parquet(other)
    assert read_traces(TraceSection(other), 4, 0) == read_traces(TraceSection(path), 4, 0) != {}
    pandas.DataFrame({"client": ["0"], "from": [0], "until": [1]}).to_parquet(tmp_path / "text.parquet")
    (tmp_path / "cut.parquet").write_bytes(other.read_bytes()[:-20])
    for name, why in (("text", "'client' holds"), ("cut", "no Parquet file")):
        with pytest.raises(UserError, match=why):
            read_traces(TraceSection(tmp_path / f"{name}.parquet"), 4, 0)


def test_all_mistakes_are_told_each_in_its_line(tmp_path):
    texts = ["0,5,5,1", "0,nan,9,1", "x,0,1,1", "0,0,3,1", "1,0,3,0", "0,2,4,0"]
    (tmp_path / "t.csv").write_text("\n".join(["client,from,until,available", *texts]))
    with pytest.raises(UserError) as error:
        read_traces(TraceSection(tmp_path / "t.csv"), 2, 0)
    said = [line.partition(".csv': ")[2] for line in str(error.value).splitlines()]
    assert said == [
        "line 2: from = 5 is not below until = 5",
        "line 3: from = 'nan'; allowed are numbers from 0",
        "line 4: client = 'x'; allowed are whole numbers from 0",
        "line 5 and line 7 both tell 'available' of client 0 at 2 s",
    ]


def test_messages_queue_where_the_receiver_and_the_sender_are_slow_for_a_while():
    """Clients 1 to 4 send 10 bytes each to client 0. It takes 10 bytes a second, 1 from 2.5 s on and 5 from 12.5 s on;
    client 4 sends 4 bytes a second until 2 s, and 1 afterwards."""
    star = ((1, 2, 3, 4), (0,), (0,), (0,), (0,))
    down = PiecewiseConstant((0.0, 2.5, 12.5), (10.0, 1.0, 0.0))
    traces = {0: ClientTrace(down=down), 4: ClientTrace(up=PiecewiseConstant((0.0, 2.0), (4.0, 1.0)))}
    plan = simulate(small(star, (10,), rounds=1, traces=traces, downlink=5.0))
    arrived = {message.src: message.arrived_s for message in plan.messages if message.dst == 0}
    # the third is half through at 2.5 s; the fourth has left at 4 s and waits until 7.5 s: 5 bytes by 12.5, 5 by 13.5
    assert arrived == pytest.approx({1: 1.0, 2: 2.0, 3: 7.5, 4: 13.5})


# -- plans -------------------------------------------------------------------------------------------------------------


def always_there(clients: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(j for j in range(clients) if j != i) for i in range(clients))


def functions(rng: random.Random) -> PiecewiseConstant:
    moments = [0.0, *sorted(each / 4 for each in rng.sample(range(1, 60), 6))]
    first = rng.randint(0, 1)
    return PiecewiseConstant(
        tuple(moments), tuple(float((first + n) % 2) for n in range(7)), rng.choice([math.inf, 16])
    )


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6))
def test_in_rounds_of_a_second_who_takes_part_follows_from_the_trace_alone(seed):
    """Round k begins for all at k - 1. Who is away then leaves; who comes back begins the next round at once."""
    rng, rounds = random.Random(seed), 25
    traces = {client: ClientTrace(available=functions(rng)) for client in range(1, 5)}
    plan = simulate(small(always_there(5), step_s=1.0, rounds=rounds, traces=traces))
    for client, trace in traces.items():
        expected, end = set(), 0
        for now in (quarter / 4 for quarter in range(4 * rounds)):  # a trace changes at none but these
            if now >= end and trace.available.at(now)[0]:
                end = math.ceil(now) + 1
                expected.add(end)
        took_part = {k + 1 for k, end in enumerate(plan.schedules[client].end) if not math.isnan(end)}
        assert took_part == expected - {rounds + 1}, client


def test_several_faults_and_absences_of_one_client_follow_each_other():
    """The crash falls into an absence and strikes when that is over; what restarts in an absence waits for its end."""
    away = PiecewiseConstant((0.0, 3.0, 8.5, 14.0, 20.5), (1.0, 0.0, 1.0, 0.0, 1.0))
    crash = Fault("crash", (1,), at_s=5.0, restart_after_s=6.0)
    again = Fault("crash", (1,), at_s=23.0, restart_after=4)
    leave = Fault("leave", (1,), at_round=40)
    traces = {1: ClientTrace(available=away)}
    faults = (crash, again, leave)
    plan = simulate(small(always_there(3), step_s=1.0, rounds=50, checkpoint_every=2, traces=traces, faults=faults))
    found = [(each.first, each.last, each.start_s, each.ending, each.state_round) for each in plan.incarnations[1]]
    assert found == [
        (1, 3, 0.0, "leave", None),
        (10, 9, 8.5, "crash", 3),
        (22, 23, 20.5, "crash", 3),
        (28, 39, 27.0, "leave", 22),
    ]


def test_the_example_is_what_its_script_makes_and_its_plan_has_everybody_where_the_file_says(capsys):
    spec = importlib.util.spec_from_file_location("day_and_night", EXAMPLES / "day-and-night.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main()
    text = (EXAMPLES / "day-and-night.csv").read_text()
    assert capsys.readouterr().out == text
    away = {client: [] for client in range(100)}
    for row in csv.DictReader(text.splitlines()):
        if row["available"] == "0":
            away[int(row["client"])].append((float(row["from"]), float(row["until"])))

    def there_from(client: int, now: float) -> float:
        day, rest = divmod(now, 240)
        for since, until in away[client]:
            if since <= rest < until:
                back = 240 * day + until
                return there_from(client, back) if until == 240 else back
        return now

    plan = sg.plan(EXAMPLES / "day-and-night.toml")
    comings = 0
    for client, (schedule, incarnations) in enumerate(zip(plan.schedules, plan.incarnations, strict=True)):
        expected = there_from(client, 0.0)
        for each in incarnations:
            comings += 1
            assert math.isclose(each.start_s, expected)
            begun = schedule.start[each.first - 1 : each.last]
            assert all(there_from(client, now) == now for now in begun), client
            expected = there_from(client, each.end_s)
            assert expected > each.end_s or each.last == 200
        begun = [plan.schedules[j].start[-1] for j in schedule.neighbours]  # there is no round left then
        assert incarnations[-1].last == 200 or expected > np.nanmin(begun)
    assert comings > 300
