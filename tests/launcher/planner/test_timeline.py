"""Clients whose times can be told by hand; mostly two: local work takes 1 s and 3 s, messages take none."""

import itertools
import math

import numpy as np
import pytest

from sheafgossip.launcher.planner.scenario import Fault, Links, Scenario
from sheafgossip.launcher.planner.simulation import simulate
from sheafgossip.launcher.planner.timeline import draw, figures, lines_of, shares, stretches_of

from .scenarios import small, small_star

SAME = "  same round"


def plan_of(*faults, phases=1, rounds=2, loss=0.0, **more):
    more |= {"nbytes": (100,) * phases, "rounds": rounds, "link": Links(loss=loss) if loss else None}
    return simulate(small(step_s=1.0, steps=(1, 3), faults=faults, **more))


def counts(plan):
    """{name: what its figure begins with}"""
    return {name.strip(): value.split()[0] for name, value in figures(plan) if name}


def test_the_fast_client_waits_for_the_slow_one():
    assert dict(figures(plan_of())) == {
        "clients, rounds": "2, 2",
        "total time": "6.000 s",
        "clients end at (first/median/last)": "4.000 s / 5.000 s / 6.000 s",
        "last to end": "client 1 (6.000 s), client 0 (4.000 s)",
        "most local work": "client 1 (6.000 s), client 0 (2.000 s)",
        "clients' time": "80.0% local work, 20.0% waiting",
        "messages sent": "4: lost 0, never used 0",
        "vectors that clients use, by age": "4",
        SAME: f"4 100.0% {'█' * 30}",
        "waits ended by the deadline": "0",
        "waited for most": "client 1: 2.000 s (100.0%), in 1 rounds of neighbours",
    }


def test_who_never_waits_uses_older_and_newer_messages_or_none():
    # Client 0 is done at 3 s, when client 1 begins its second round; messages arrive in the moment they are sent
    told = dict(figures(plan_of(staleness=math.inf, rounds=3)))
    assert (told["total time"], told["clients' time"]) == ("9.000 s", "100.0% local work, 0.0% waiting")
    ages = {"same round": "2", "1 older": "1", "2 to 4 older": "1", "newer": "1", "none: goes without": "1"}
    assert ages.items() <= counts(plan_of(staleness=math.inf, rounds=3)).items()  # none: client 1 comes after client 0
    assert told["messages sent"] == "6: lost 0, never used 3 (50.0%)"  # round 2 of client 0; rounds 2 and 3 of client 1
    lost = plan_of(staleness=math.inf, loss=1.0)
    assert dict(figures(lost))["messages sent"] == "4: lost 4 (100.0%), never used 0"
    assert counts(lost)["none: goes without"] == "4"


def test_waits_after_the_local_work_are_told_from_those_before():
    (fast, slow) = stretches_of(plan_of(phases=2))
    assert (fast.computing.tolist(), fast.waiting.tolist()) == ([[0, 1], [3, 4]], [[1, 3], [4, 6]])
    assert (slow.computing.tolist(), slow.waiting.size) == ([[0, 3], [3, 6]], 0)


def test_a_crash_and_the_return(tmp_path):
    plan = plan_of(Fault("crash", (1,), at_round=2, restart_after=1), rounds=3)
    fast, slow = stretches_of(plan)
    assert [(client, kind) for _, client, kind, _ in plan.events] == [(1, "crash"), (1, "restart")]
    assert (slow.ends, slow.away.tolist()) == ((3.0,), [[3.0, slow.returns[0]]])
    assert dict(figures(plan))["clients' time"].endswith(f"and away for {slow.returns[0] - 3:.3f} s")
    assert fast.ends == fast.returns == ()
    _, line, *_ = lines_of(plan, width=40, lines=20)
    assert line.count("×") == line.count("↑") == 1
    assert line.index("×") < line.index("╌") < line.index("↑")
    draw(plan, tmp_path / "plan.svg", "a plan for $")
    drawn = (tmp_path / "plan.svg").read_text()
    labels = ("local work", "waiting", "away", "crashes, leaves", "joins, is back")
    assert all(f">{label}<" in drawn for label in labels)


def test_who_crashes_for_good_or_joins_late_is_away_until_the_end_or_from_the_start():
    plan = plan_of(Fault("crash", (1,), at_round=2), rounds=9)
    told = counts(plan)  # client 0 sends twice before client 1 has gone
    assert (told["clients that are gone by the end"], told["messages not sent"]) == ("1", "7:")
    assert stretches_of(plan)[1].away.tolist() == [[3.0, plan.end_s]]
    (late, _) = stretches_of(plan_of(Fault("join", (0,), at_round=2), rounds=3))
    assert (late.away.tolist(), late.returns) == ([[0.0, 3.0]], (3.0,))


def test_clients_that_exchange_nothing_have_a_timeline_too():
    told = dict(figures(simulate(Scenario(0, 2, ((), ()), {}, step_s=1.0))))
    assert (told["messages sent"], told["total time"]) == ("0: lost 0, never used 0", "2.000 s")
    assert told["clients' time"] == "100.0% local work, 0.0% waiting"


def test_shares_add_up_to_the_stretches():
    rng = np.random.default_rng(0)
    stretches = np.sort(rng.uniform(0, 10, 20)).reshape(-1, 2)
    edges = np.sort(np.concatenate([[0, 10], rng.uniform(0, 10, 30), stretches[:3, 0]]))
    expected = [
        sum(max(0.0, min(end, high) - max(start, low)) for start, end in stretches)
        for low, high in itertools.pairwise(edges)
    ]
    assert shares(stretches, edges) == pytest.approx(expected)
    assert shares(np.zeros((0, 2)), edges).tolist() == [0.0] * (len(edges) - 1)


def test_as_many_lines_as_asked_for_in_the_width_that_is_given():
    plan = plan_of()
    fast, slow, axis, *rest = lines_of(plan, width=14, lines=20)
    assert (fast, slow) == ("0 ██····██", "1 ████████████")
    assert axis.startswith("  0 ")
    assert "waiting" in " ".join(rest)
    first, *_, last = lines_of(plan, width=14, lines=1)
    assert (first, last) == (fast, "The first 1 of 2 clients; --lines shows more.")
    for width in (40, 77, 100):
        _, _, axis, *_ = lines_of(plan, width=width, lines=20)
        for label in axis.replace(" s", "").split()[1:]:  # round numbers under their moments, of 6 s
            assert (axis.index(label) - 2) / (width - 2) * 6 == pytest.approx(float(label), abs=6 / (width - 2))


def test_a_timeline_is_that_of_the_clients_and_tells_whom_the_server_waits_for():
    plan = simulate(small_star(3, step_s=1.0, faults=(Fault("slow", clients=(0,), rounds=(1, 7), factor=3.0),)))
    told = dict(figures(plan))
    assert (told["clients, rounds"], told["messages sent"]) == ("3, 7", "42: lost 0, never used 0")
    assert told["clients' time"] == "55.6% local work, 44.4% waiting"  # 21, 7 and 7 s of work; 14 and 14 s of waiting
    assert told["waited for most"] == "client 0: 21.00 s (100.0%), in 7 rounds of neighbours"
    assert told["  same round"].split()[0] == told["vectors that clients use, by age"] == "42"
    straggler, other, _ = stretches_of(plan)
    assert other.computing.tolist() == [[3.0 * r, 3.0 * r + 1] for r in range(7)]
    assert other.waiting.tolist() == [[3.0 * r + 1, 3.0 * r + 3] for r in range(7)]
    assert not len(straggler.waiting)
