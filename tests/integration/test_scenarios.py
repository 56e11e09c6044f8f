"""Runs with a scenario: planned time repeats to the bit, faults strike as written, the unwritten is survived, and all
that happened is on record as often as it did."""

import re
from collections import Counter

import numpy as np
import pytest
from safetensors.numpy import load_file

from runs import assert_same, assert_same_states, command, run_here_again, small

STRAGGLERS = """
clients = 12
topology.p = 0.3
data = {samples = 600, rotations = [0, 90]}
algorithm = {name = "sheaf-fmtl", gamma = 0.05, start_scale = 0.1}
checkpoints.every = 5
time.clock = "virtual"
compute.step_s = 0.05
stragglers = {kind = "fixed", fraction = 0.25}
links.latency = "lognormal"
links.latency_s = 0.02
"""
ASYNCHRONOUS = (
    STRAGGLERS
    + """
rounds = 24
time.staleness = 4
time.silence = "stale"
time.deadline_s = 2.0
links.loss = 0.05
faults = [{kind = "crash", clients = [7], at_round = 8, restart_after = 6}]
"""
)


def test_an_asynchronous_scenario_repeats_to_the_bit_under_load_and_is_taken_up_after_a_kill(
    run_in_threads, load_cores, cut
):
    alone = run_in_threads(ASYNCHRONOUS)
    load_cores()
    folder = cut(ASYNCHRONOUS, round=15, away=True)
    assert "going on after round" in command("resume", folder.path).stderr
    assert_same(alone, folder)
    told = events(alone, "crash", "restart", "join", "leave").elements()
    assert sorted(event[:2] for event in told) == [("crash", 7), ("restart", 7)]
    used = alone.rows("SELECT DISTINCT round - used_round FROM used WHERE used_round IS NOT NULL")
    assert len(used) > 3  # some of the own round, some older, some newer
    starts = folder.rows("SELECT detail FROM event WHERE kind = 'start'")
    assert ["resumed after round" in text for (text,) in starts] == [False, True]
    assert folder.rows("SELECT count(*) FROM event WHERE kind = 'finish'") == [(1,)]


def test_a_synchronous_scenario_learns_the_same_as_no_scenario(run_in_threads):
    """Time is only told: slow clients and slow links change no bit where everyone waits for everyone."""
    timed = run_in_threads(STRAGGLERS, "rounds=10")
    plain = run_in_threads(STRAGGLERS.partition("time.clock")[0], "rounds=10")
    assert timed.payload() == plain.payload()
    assert timed.thetas(10).tobytes() == plain.thetas(10).tobytes()
    assert plain.rows("SELECT count(*) FROM round WHERE virtual_s IS NOT NULL") == [(0,)]
    assert timed.rows("SELECT count(*) FROM overhead WHERE kind = 'confirmation'") == [(0,)]


@pytest.mark.parametrize(("clock", "last"), [("virtual", 60), ("wall", 25)])
def test_the_others_finish_all_rounds_when_a_client_is_killed_that_should_not_die(start, clock, last, monkeypatch):
    monkeypatch.setenv("SHEAFGOSSIP_FAILPOINTS", "state renamed@node-0004:2=kill")  # in its checkpoint of round 5
    time = ("time.silence=skip", "time.deadline_s=0.5", "time.deaths=continue", f"time.clock={clock}")
    options = [word for value in (*time, "compute.step_s=0.005", f"rounds={last}") for word in ("--set", value)]
    going = start(STRAGGLERS, *options)
    code, said = going.end(120)
    assert code == 0, said
    done = going.folder.rows(f"SELECT node FROM round WHERE round = {last} ORDER BY node")
    assert done == [(node,) for node in range(12) if node != 4]  # what it had not sent yet is lost
    assert going.folder.rows("SELECT node FROM event WHERE kind = 'death'") == [(4,)]
    assert going.folder.rows("SELECT count(*) > 0 FROM used WHERE neighbour = 4 AND used_round IS NULL") == [(1,)]


def test_a_step_is_timed_on_this_machine_where_none_is_given_and_written_down(run_in_threads):
    folder = run_in_threads(STRAGGLERS.replace("compute.step_s = 0.05", "rounds = 2"))
    step_s = folder.config["compute"]["step_s"]
    assert 1e-5 < step_s < 0.1
    ((end_s,),) = folder.rows("SELECT max(virtual_s) FROM round")
    assert end_s > 2 * 10 * step_s  # two rounds of the stragglers


TALK = small("evaluation.every = 0", 'time.clock = "virtual"', "transport.timeout = 30", rounds=10, samples=200)


def test_a_client_far_ahead_neither_floods_a_slow_one_nor_loses_a_message(run_in_threads):
    """Two clients; one takes 300 rounds' time for each round of the other, and hears of it all the same."""
    far = ("compute.slowdown=[1.0, 300.0]", "compute.step_s=0.01", "links.latency_s=0.001", "time.staleness=inf")
    folder = run_in_threads(TALK, "clients=2", "rounds=400", *far)
    assert folder.rows("SELECT sum(messages) FROM traffic WHERE src = 0") == [(400,)]
    ((confirmed,),) = folder.rows("SELECT messages FROM overhead WHERE kind = 'confirmation' AND src = 1")
    assert confirmed >= 3  # a window of 128 was filled and confirmed by halves
    # in its second round, the slow client uses the freshest of what has come: of about 300 rounds
    used = dict(folder.rows("SELECT round, used_round FROM used WHERE node = 1 AND round <= 2"))
    assert used[1] is None
    assert 295 <= used[2] <= 301


LARGE = ("model.kind=mlp", "model.hidden=[900]", "model.dtype=float64")
"""Vectors of 540 kB: two fit into 1 MiB."""


@pytest.mark.parametrize("clock", ["virtual", "wall"])
@pytest.mark.parametrize(
    ("rounds", "settings"),
    [
        (10, ("time.staleness=4", "compute.step_s=0.01", "links.latency_s=0.03", "topology.kind=complete", *LARGE)),
        (250, ("time.staleness=inf", "compute.step_s=0.001", "links.latency_s=0.2")),
        (10, ("time.staleness=8", "compute.step_s=0.1", "links.latency_s=0.6", *LARGE)),
    ],
)
def test_messages_that_are_under_way_for_many_rounds_stop_no_run(run_in_threads, clock, rounds, settings):
    folder = run_in_threads(TALK, f"time.clock={clock}", f"rounds={rounds}", *settings)
    assert folder.rows("SELECT max(round), count(*) FROM round") == [(rounds, 4 * (rounds + 1))]
    assert folder.rows("SELECT count(*) FROM event WHERE kind = 'lost-records'") == [(0,)]


def test_wall_and_virtual_clock_tell_about_the_same_of_one_scenario(run_in_processes, run_in_threads):
    """40 ms a step, 200 for the slow: what a machine does beside is small against that."""
    slow = ("clients=5", "compute.step_s=0.04", "compute.slowdown=[5.0, 1.0, 1.0, 1.0, 1.0]", "links.latency_s=0.01")
    late = ("time.staleness=2", "time.silence=stale", "time.deadline_s=1.0")
    planned, real = run_in_threads(TALK, *slow, *late), run_in_processes(TALK, *slow, *late, "time.clock=wall")
    ((end_planned,),) = planned.rows("SELECT max(virtual_s) FROM round")
    ((end_real,),) = real.rows("SELECT max(wall_s) FROM round")
    assert end_planned == pytest.approx(2.0, abs=0.05)
    assert end_planned <= end_real < 2 * end_planned
    idle = dict(real.rows("SELECT node, sum(idle_s) FROM round GROUP BY node"))
    assert idle[0] < 0.5 < max(idle.values())


@pytest.mark.parametrize("algorithm", ["d-psgd", "per-fedavg"])  # whose local steps are its own
def test_on_the_wall_clock_every_method_is_as_slow_as_planned_and_work_beside_learning_is_part_of_it(
    run_in_threads, algorithm
):
    text = small("compute.step_s = 0.05", clients=2, rounds=8, topology="", algorithm=algorithm)
    planned, real = run_in_threads(text, "time.clock=virtual"), run_in_threads(text, "time.clock=wall")
    ((seconds,),) = planned.rows("SELECT max(virtual_s) FROM round")
    assert real.rows(f"SELECT max(wall_s) >= {seconds} FROM round") == [(1,)]


def faults(*faults: str) -> str:
    """crash 2 5 2: client 2 crashes at round 5, and comes back after 2 more."""
    texts = []
    for kind, client, at_round, *after in map(str.split, faults):
        again = f", restart_after = {after[0]}" if after else ""
        texts.append(f'{{ kind = "{kind}", clients = [{client}], at_round = {at_round}{again} }}')
    return f"faults=[{', '.join(texts)}]"


def test_who_waits_without_a_deadline_is_not_kept_waiting_by_comings_and_goings(run_in_threads):
    """Wall clock, synchronous: the others are further, or not as far, as the plan had them when a client comes back."""
    comings = ("rounds=20", faults("crash 2 15 4", "crash 3 5 5", "join 4 3"), "compute.step_s=0.01")
    for algorithm in ("sheaf-fmtl", "d-psgd"):
        others = ("clients=6", "topology.kind=complete", "time.clock=wall", f"algorithm.name={algorithm}")
        folder = run_in_threads(TALK, *comings, *others)
        assert folder.rows("SELECT node, max(round) FROM round GROUP BY node") == [(node, 20) for node in range(6)]
        kinds = folder.rows("SELECT kind, count(*) FROM event WHERE node >= 0 AND kind <> 'drop' GROUP BY kind")
        assert dict(kinds) == {"crash": 2, "restart": 2, "join": 1}


@pytest.mark.parametrize("algorithm", ["d-psgd", "dfedsam", "dac"])
def test_on_the_wall_clock_clients_come_at_once_into_rounds_far_apart_and_wait_for_each_other_in_none(
    run_in_threads, algorithm
):
    """The middle of a star comes into the round of those who were there, and another with it into the first round."""
    steps = {"dfedsam": "gossip_steps = 2"}.get(algorithm, "")  # two messages a round, as dac
    comes = 'faults = [{ kind = "join", clients = [0, 2], at_s = 0.2 }]'
    wall = 'time.clock = "wall"\ncompute.step_s = 0.02\ntransport.timeout = 4.0'
    folder = run_in_threads(
        small(f"[algorithm]\nname = {algorithm!r}", steps, rounds=12, clients=3, topology="star", algorithm="").replace(
            "[algorithm]", f"{comes}\n{wall}\n[algorithm]"
        )
    )
    came = dict(folder.rows("SELECT node, detail FROM event WHERE kind = 'join'"))
    assert came[2] == "takes part from round 1"
    assert came[0] == f"takes part from round {(first := int(came[0].split()[-1]))}"
    assert first > 5
    assert folder.rows("SELECT count(*) FROM round WHERE node = 2 AND round > 0") == [(12,)]


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_a_client_that_came_late_and_crashes_before_a_checkpoint_starts_again_from_the_start(
    run_in_processes, run_in_threads, clock
):
    """With a new key, where there are keys."""
    settings = ("rounds=12", "topology.kind=complete", "checkpoints.every=10", faults("join 2 3", "crash 2 5 2"))
    late = ("time.staleness=1", "time.silence=skip", "time.deadline_s=1.0", "compute.step_s=0.01")
    settings += (*late, "links.latency_s=0.001", f"time.clock={clock}")
    keyed = run_in_processes(TALK, *settings, "transport.protocol=tcp")
    # On the wall clock a message may be on its way to one that crashes
    drop = "kind = 'drop'" + (" AND detail NOT LIKE '%neighbour is gone%'" if clock == "wall" else "")
    kinds = "'join', 'crash', 'restart'"
    told = keyed.rows(f"SELECT kind FROM event WHERE kind IN ({kinds}) OR ({drop}) ORDER BY wall_s")
    assert told == [("join",), ("crash",), ("restart",)]
    assert keyed.rows("SELECT max(round) FROM round WHERE node = 2") == [(12,)]
    if clock == "virtual":
        assert_same_states(keyed, run_in_threads(TALK, *settings), 12)


def test_messages_of_an_earlier_incarnation_are_in_the_checkpoints_of_the_later_ones(run_in_threads):
    settings = ("clients=6", "rounds=24", "topology.kind=complete", "checkpoints.every=2", "links.latency_s=0.7")
    slow = ("compute.step_s=0.1", "compute.slowdown=[1, 1, 1, 1, 1, 9]", "time.staleness=inf", "time.silence=stale")
    twice = faults("crash 1 7 2", "crash 1 14 1")[:-1]
    cuts = f'{twice}, {{ kind = "cut", edges = [[1, 5], [1, 2]], rounds = [5, 22] }}]'
    folder = run_in_threads(TALK, *settings, *slow, cuts)
    assert folder.rows("SELECT count(*) FROM event WHERE node = 1 AND kind = 'restart'") == [(2,)]
    of_earlier = 0
    for path in sorted((folder.path / "state").glob("round-*/node-*.safetensors")):
        round, node = int(path.parent.name.removeprefix("round-")), int(path.stem.removeprefix("node-"))
        needed, neighbours = folder.plan[node]["needed"], folder.plan[node]["neighbours"].tolist()
        due = np.argwhere(needed[:round] > round).tolist() if round % 2 == 0 else []
        expected = {f"sent.{neighbours[place]}.{row + 1}.{phase}" for row, phase, place in due}
        found = {name for name in load_file(path) if name.startswith("sent.")}
        assert found == expected, path
        of_earlier += sum(node == 1 and round > 8 and int(name.split(".")[2]) < 7 for name in found)
    assert of_earlier


# -- what is on record of runs that were taken up ----------------------------------------------------------------------

FAULTS = """
checkpoints = {every = 5}
compute = {step_s = 0.01, slowdown = [1.0, 1.0, 1.0, 8.0]}
time = {clock = "virtual", silence = "skip", deadline_s = 0.01}
faults = [
    {kind = "crash", clients = [1], at_round = 7, restart_after = 3},
    {kind = "leave", clients = [2], at_round = 12},
    {kind = "slow", clients = [0], rounds = [1, 3]},
]
"""
SKIPPING = small(FAULTS, rounds=30, samples=80)


def events(folder, *kinds):
    return Counter(folder.rows(f"SELECT kind, node, detail FROM event WHERE kind IN {(*kinds, '')}"))


STRONG = 'algorithm = {name = "sheaf-fmtl", gamma = 0.05, start_scale = 0.1, eta = 0.35, lam = 1.0}'
NEAR_DIVERGENCE = small(STRONG, clients=3, rounds=6, samples=60, algorithm="")
FATES = ("timeout", "crash", "restart", "leave", "scenario")


@pytest.mark.parametrize(
    ("text", "kinds", "forgotten", "last", "resumed_at"),
    [
        (SKIPPING, FATES, "", 23, 20),
        (SKIPPING, FATES, "", 2, 0),  # before the first checkpoint: the run begins again
        # Others may be far ahead of one that has left when all are killed
        (SKIPPING, FATES, "DELETE FROM event WHERE kind = 'leave'", 23, 10),
        (NEAR_DIVERGENCE, ("warning",), "", 2, 0),
    ],
    ids=["after a checkpoint", "before the first one", "before a departure that is not on record", "warnings"],
)
def test_events_are_on_record_once_whatever_rounds_are_done_again(
    run_in_threads, tmp_path, text, kinds, forgotten, last, resumed_at
):
    whole = run_in_threads(text)
    told = events(whole, *kinds)
    assert {kind for kind, *_ in told} == set(kinds)
    folder = whole.copy(tmp_path / "run")
    folder.alter(forgotten)
    folder.cut_after(last)
    assert run_here_again(folder, "threads").prepared.resumed_at == resumed_at
    assert events(folder, *kinds) == told


def test_on_the_wall_clock_a_run_goes_on_after_a_departure_and_tells_of_it_once(cut):
    folder = cut(SKIPPING.replace("virtual", "wall").replace("0.01", "0.02"), round=20, away=1)
    first = deadlines(folder)
    folder.alter("DELETE FROM event WHERE kind IN ('crash', 'restart', 'leave')")  # killed before these were stored
    assert re.search("going on after round (15|20)", command("resume", folder.path).stderr)
    told = events(folder, "crash", "restart", "leave")
    assert sorted(event[:2] for event in told.elements()) == [("crash", 1), ("leave", 2), ("restart", 1)]
    assert dict(folder.rows("SELECT node, max(round) FROM round GROUP BY node")) == {0: 30, 1: 30, 2: 11, 3: 30}
    again = deadlines(folder)
    assert all(again.get(node, 0) >= count / 2 for node, count in first.items())  # some rounds were done again


def deadlines(folder):
    """{client: how many ended its waits}, of those that were there from the first round to the last."""
    rows = folder.rows("SELECT node, detail FROM event WHERE kind = 'timeout' AND node IN (0, 3)")
    assert len(rows) == len(dict(rows))
    return {node: int(detail.split()[0]) for node, detail in rows}


def test_what_is_on_record_of_a_round_is_all_of_it_wherever_its_records_were_cut_off(
    start, run_in_threads, monkeypatch
):
    """Each record is a batch of its own here, and each is committed: the collector dies between two of one round."""
    whole = run_in_threads(SKIPPING)
    monkeypatch.setenv("SHEAFGOSSIP_TEST_CONSTANTS", "records_a_batch=1,burst=1,burst_rows=1,commit_every_s=0")
    monkeypatch.setenv("SHEAFGOSSIP_FAILPOINTS", "committed@collector:62=kill")
    going = start(SKIPPING)
    assert going.end()[0] == 1
    told = going.folder.rows("SELECT node, round FROM round WHERE round > 0")
    assert told
    for node, round in told:
        for table, who in (("traffic", "src"), ("used", "node")):
            of_round = f"SELECT * FROM {table} WHERE {who} = {node} AND round = {round}"
            assert Counter(going.folder.rows(of_round)) == Counter(whole.rows(of_round)), (table, node, round)


BY_TRACE = """
rounds = 40
checkpoints.every = 5
time = {clock = "virtual", staleness = 1}
compute.step_s = 0.1
trace = {path = "%s", repeat = true}
"""
AWAY = {1: [(0.0, 0.55), (1.2, 1.9)], 2: [(0.3, 0.75)], 3: [(0.95, 1.5), (1.7, 2.0)], 5: [(0.5, 0.62)]}
"""Seconds in which clients are away, over and over every 2 s."""


def test_who_takes_part_by_a_trace_is_there_by_it_and_goes_on_from_its_own_state(run_in_threads, cut, tmp_path):
    rows = ["client,from,until,available,speed", "4,0,2,,0.5", *(f"{client},1.95,2,,1" for client in (1, 2, 5))]
    rows += [f"{client},{since},{until},0," for client, spans in AWAY.items() for since, until in spans]
    (tmp_path / "trace.csv").write_text("\n".join(rows))
    text = small(BY_TRACE % (tmp_path / "trace.csv"), clients=6, rounds=0, samples=300)
    folder = run_in_threads(text)
    begun = {(node, round): end_s for node, round, end_s in folder.rows("SELECT node, round + 1, virtual_s FROM round")}
    moves = [(node, kind, when) for node, kind, when in folder.rows("SELECT node, kind, virtual_s FROM event") if when]

    def is_away(node: int, now: float) -> bool:
        return any(since - 1e-9 <= now % 2 < until - 1e-9 for since, until in AWAY.get(node, []))

    for node, kind, when in moves:
        assert is_away(node, when) == (kind == "leave")
        assert kind == "leave" or is_away(node, when - 1e-6)  # back as soon as it can be
    there = set(folder.rows("SELECT node, round FROM round WHERE round > 0"))
    left = {(node, when) for node, kind, when in moves if kind == "leave"}
    for (node, round), begin_s in begun.items():
        if round <= 40:  # it has left where, and only where, it was away then
            assert is_away(node, begin_s) == ((node, begin_s) in left)
            assert (node, round) in there or (node, begin_s) in left
    assert len(left) >= 8
    states = {path.name for path in (folder.path / "state").iterdir()}
    assert len(states) > 1 + 40 // 5  # those who left wrote theirs
    again = cut(text, round=25, away=True)
    assert "going on after round" in command("resume", again.path).stderr
    assert_same(folder, again)
    again.cut_after(35)
    (tmp_path / "trace.csv").write_text("\n".join(rows[:-1]))
    assert (
        "the file that trace.path names has changed since the run began" in command("resume", again.path, code=2).stderr
    )
