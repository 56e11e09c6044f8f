"""Two clients whose times can be told by hand: local work takes 1 s and 3 s, messages take none."""

import itertools
import math

import numpy as np
import pytest

from sheafgossip.launcher.planner.scenario import Fault, Link, Scenario
from sheafgossip.launcher.planner.simulation import simulate
from sheafgossip.launcher.planner.timeline import AGES, Timeline, draw, figures, lines_of, shares, stretches_of

from .scenarios import small


def plan_of(*faults, phases=1, rounds=2, loss=0.0, **more):
    link = Link(loss=loss) if loss else None
    return simulate(
        small(nbytes=(100,) * phases, rounds=rounds, link=link, step_s=1.0, steps=(1, 3), faults=faults, **more)
    )


def ages(**counts):
    return dict.fromkeys(AGES, 0) | {age.replace("_", " "): count for age, count in counts.items()}


def test_the_fast_client_waits_for_the_slow_one():
    timeline = Timeline(plan_of())
    assert (timeline.plan.end_s, timeline.finishing, timeline.leaving) == (6.0, {0: 4.0, 1: 6.0}, 0)
    assert (timeline.computing_s, timeline.waiting_s, timeline.away_s) == ((2.0, 6.0), (2.0, 0.0), (0.0, 0.0))
    assert (timeline.awaited, timeline.waiting_share) == (((1, 2.0, 1),), pytest.approx(2 / 10))
    assert (timeline.sent, timeline.lost, timeline.unused, timeline.deadlines) == (4, 0, 0, 0)
    assert timeline.plan.withheld == 0
    assert timeline.ages == ages(same_round=4)
    assert "clients end at (first/median/last)  4.000 s / 5.000 s / 6.000 s" in list(figures(timeline))


def test_who_never_waits_uses_older_and_newer_messages_or_none():
    timeline = Timeline(plan_of(staleness=math.inf, rounds=3))
    # Client 0 is done at 3 s, when client 1 begins its second round; messages arrive in the moment they are sent
    assert (timeline.waiting_s, timeline.plan.end_s) == ((0.0, 0.0), 9.0)
    assert timeline.ages == ages(same_round=2, newer=1) | {
        "1 older": 1,
        "2 to 4 older": 1,
        "none: goes without": 1,  # client 0 at the very start: client 1 comes after it
    }
    assert timeline.unused == 3  # round 2 of client 0; rounds 2 and 3 of client 1
    timeline = Timeline(plan_of(staleness=math.inf, loss=1.0))
    assert (timeline.sent, timeline.lost, timeline.unused) == (4, 4, 0)
    assert timeline.ages == ages() | {AGES[-1]: 4}


def test_waits_after_the_local_work_are_told_from_those_before():
    (fast, slow) = stretches_of(plan_of(phases=2))
    assert (fast.computing.tolist(), fast.waiting.tolist()) == ([[0, 1], [3, 4]], [[1, 3], [4, 6]])
    assert (slow.computing.tolist(), slow.waiting.size) == ([[0, 3], [3, 6]], 0)


def test_a_crash_and_the_return(tmp_path):
    plan = plan_of(Fault("crash", (1,), at_round=2, restart_after=1), rounds=3)
    timeline, (fast, slow) = Timeline(plan), stretches_of(plan)
    assert [(client, kind) for _, client, kind, _ in plan.events] == [(1, "crash"), (1, "restart")]
    assert (slow.ends, slow.away.tolist()) == ((3.0,), [[3.0, slow.returns[0]]])
    assert timeline.away_s == (0.0, slow.returns[0] - 3.0)
    assert fast.ends == fast.returns == ()
    _, line, *_ = lines_of(plan, width=40, lines=20)
    assert line.count("×") == line.count("↑") == 1
    assert line.index("×") < line.index("╌") < line.index("↑")
    draw(plan, tmp_path / "plan.svg", "a plan for $")
    drawn = (tmp_path / "plan.svg").read_text()
    assert all(
        f">{label}<" in drawn for label in ("local work", "waiting", "away", "crashes, leaves", "joins, is back")
    )


def test_who_crashes_for_good_or_joins_late_is_away_until_the_end_or_from_the_start():
    plan = plan_of(Fault("crash", (1,), at_round=2), rounds=9)
    timeline = Timeline(plan)
    assert (timeline.leaving, timeline.plan.withheld) == (1, 7)  # client 0 sends twice before it has gone
    assert stretches_of(plan)[1].away.tolist() == [[3.0, plan.end_s]]
    (late, _) = stretches_of(plan_of(Fault("join", (0,), at_round=2), rounds=3))
    assert (late.away.tolist(), late.returns) == ([[0.0, 3.0]], (3.0,))


def test_clients_that_exchange_nothing_have_a_timeline_too():
    timeline = Timeline(simulate(Scenario(0, 2, ((), ()), {}, step_s=1.0)))
    assert (timeline.sent, timeline.waiting_share, timeline.plan.end_s) == (0, 0.0, 2.0)
    assert "messages sent" in "\n".join(figures(timeline))


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
