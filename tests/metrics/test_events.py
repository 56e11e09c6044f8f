"""What a scenario did to a run, and what a user is told of it, from records written by hand."""

import json
import re

import pytest

from made import done as after
from made import event as at_wall
from made import node, printed, sent, write
from sheafgossip.metrics import open_run
from sheafgossip.metrics.comparison import summarize_all
from sheafgossip.metrics.events import remarks_on
from sheafgossip.metrics.records import LAUNCHER, EventRecord, OverheadRecord, RoundRecord, UsedRecord
from sheafgossip.metrics.summary import ReachedVirtually, bytes_to_reach, summarize, virtual_time_to_reach
from sheafgossip.metrics.tables import render_summary


def done(client, number, virtual_s, metric=None, idle_s=0.0, wall_s=0.0, **others) -> RoundRecord:
    return after(client, number, metric, wall_s, virtual_s=virtual_s, idle_s=idle_s, **others)


def event(client: int, kind: str, virtual_s: float | None = None, detail: str = "", wall_s: float = 0.0) -> EventRecord:
    return at_wall(client, kind, wall_s, detail, virtual_s)


@pytest.fixture
def folder(tmp_path):
    """Writes records into a run's folder."""
    return lambda *records, metric="accuracy", **facts: write(tmp_path, *records, metric=metric, **facts)


def shown(folder, target=None) -> str:
    return printed(render_summary(summarize_all([folder], target), target, every=True))


def test_waiting_is_a_share_of_the_time_that_clients_are_there(folder):
    run = folder(
        node(0), node(1), node(2),
        done(0, 0, 0.0), done(0, 1, 4.0, idle_s=1.0), done(0, 2, 10.0, idle_s=2.0),
        done(1, 0, 0.0), done(1, 1, 2.0), event(1, "crash", 2.0), event(1, "restart", 5.0), done(1, 3, 8.0),
        event(2, "join", 6.0), done(2, 2, 7.0, idle_s=0.5),
    )  # fmt: skip
    conditions = summarize(run).conditions
    assert (conditions.virtual_s, conditions.waited_s) == (10.0, 3.5)
    assert conditions.waited_share == pytest.approx(3.5 / (10 + (8 - 3) + (7 - 6)))


def test_without_a_scenario_there_are_no_conditions_and_on_the_wall_clock_seconds_are_real(folder):
    run = folder(node(0), done(0, 1, None, 0.5, idle_s=None))
    assert summarize(run).conditions is None
    assert not re.search("virtual|waited", shown(run))
    events = event(0, "crash", wall_s=2.0), event(0, "restart", wall_s=5.0)
    folder(done(0, 1, None, idle_s=1.0, wall_s=2.0), *events, done(0, 2, None, wall_s=7.0))
    conditions = summarize(run).conditions
    assert (conditions.virtual_s, conditions.waited_share) == (None, pytest.approx(1 / 4))
    assert "virtual time" not in shown(run)


def test_events_are_counted_and_numbers_in_them_added(folder):
    run = folder(
        node(0), done(0, 1, 1.0),
        event(0, "crash", 1.0), event(0, "restart", 2.0), event(1, "crash", 1.0), event(2, "join", 1.0),
        event(3, "leave", 1.0), event(4, "death"), event(0, "timeout", detail="12 waits ended by the deadline"),
        event(1, "timeout", detail="3 waits ended by the deadline"), event(1, "drop", 1.0, "5 x unknown sender"),
        event(LAUNCHER, "scenario", 0.0, "slow"),
    )  # fmt: skip
    assert summarize(run).conditions.events == {
        "crash": 2, "restart": 1, "join": 1, "leave": 1, "death": 1, "timeout": 15, "dropped": 5,
    }  # fmt: skip


def test_vectors_that_were_used_late_early_or_not_at_all(folder):
    used = [UsedRecord(0, 5, 0, neighbour, number) for neighbour, number in enumerate((5, 5, 4, 1, 6, None))]
    run = folder(node(0), done(0, 5, 1.0), *used)
    conditions = summarize(run).conditions
    assert (conditions.used, conditions.older, conditions.newer, conditions.missing) == (5, 2, 1, 1)
    assert "2 (33.3 %)" in shown(run)
    totals = open_run(run).used_total
    assert totals[["same_round", "older", "newer", "missing"]].sum().tolist() == [2, 2, 1, 1]
    assert totals["oldest"].max() == 4


def test_rounds_completed_by_all_leaves_out_clients_that_have_gone_for_good(folder):
    run = folder(
        node(0), node(1), node(2), done(0, 20, 1.0), done(1, 4, 1.0), event(1, "crash", 1.0),
        done(2, 3, 1.0), event(2, "crash", 1.0), event(2, "restart", 2.0), done(2, 19, 3.0),
    )  # fmt: skip
    summary = summarize(run)
    assert (summary.rounds, summary.gone, summary.clients) == (19, 1, 3)
    assert "19, but for 1 gone" in shown(run)
    all_gone = summarize(folder(event(0, "leave", 4.0), event(2, "death")))
    assert (all_gone.rounds, all_gone.gone) == (20, 3)  # of the one that got furthest


PROGRESS = [
    node(0), node(1),
    done(0, 0, 0.0, 0.1), done(1, 0, 0.0, 0.3),
    done(0, 1, 1.0, 0.5), done(0, 2, 2.0, 0.7), done(0, 3, 3.0, 0.9),
    done(1, 1, 2.0, 0.5), done(1, 2, 5.0), done(1, 3, 7.0, 0.6),
]  # fmt: skip


def test_progress_in_virtual_time_is_the_mean_of_the_latest_evaluations(folder):
    progress = open_run(folder(*PROGRESS)).virtual_progress
    assert progress["virtual_s"].tolist() == [0.0, 1.0, 2.0, 3.0, 7.0]
    assert progress["evaluated"].tolist() == [2] * 5
    assert progress["mean_test_metric"].tolist() == pytest.approx([0.2, 0.4, 0.6, 0.7, 0.75])
    late = folder(node(2), event(2, "join", 2.5), done(2, 2, 4.0, 0.0), event(0, "leave", 3.0))
    progress = open_run(late).virtual_progress
    assert progress["evaluated"].tolist() == [2, 2, 2, 2, 3, 3]
    assert progress["mean_test_metric"].iloc[-1] == pytest.approx(summarize(late).final.mean)


def test_virtual_time_to_a_target_comes_with_the_bytes_of_the_rounds_completed_by_then(folder):
    traffic = [sent(client, 1 - client, number, 10) for client in (0, 1) for number in (1, 2, 3)]
    run = folder(*PROGRESS, *traffic, OverheadRecord(0, 1, "confirmation", 100, 2_500_000))
    reached = ReachedVirtually(2.0, 30, 90, 120)  # 2 rounds of client 0, 1 of client 1
    assert virtual_time_to_reach(run, 0.6) == reached
    assert virtual_time_to_reach(run, 0.76) is None
    text = shown(run, 0.6)
    assert "virtual time to reach 60 %, s" in text
    assert "payload to reach 60 % in virtual time, MB" in text
    assert re.search(r"confirmations of messages, MB *│ +2.50", text)
    told = summarize(run, 0.6).as_dict()
    assert json.loads(json.dumps(told, allow_nan=False))["reached_virtually"]["virtual_s"] == 2.0
    assert virtual_time_to_reach(folder(metric="mse"), 0.2).virtual_s == 0.0  # an error must fall to its target


def test_a_target_is_not_reached_before_all_who_begin_have_evaluated(folder):
    run = folder(node(0), node(1), done(0, 0, 0.0, 0.9), done(1, 0, 0.0), done(1, 1, 5.0, 0.9))
    assert virtual_time_to_reach(run, 0.8).virtual_s == 5.0


def test_rounds_to_a_target_count_those_who_took_part_and_no_round_that_somebody_still_works_on(folder):
    run = folder(
        node(0), node(1), node(2), *(done(0, number, number, number / 10) for number in range(7)),
        *(done(1, number, number, number / 10) for number in range(3)), event(1, "crash", 2.5),
        *(done(2, number, number, number / 10) for number in (0, 1, 2, 4, 5)),
    )  # fmt: skip
    assert [bytes_to_reach(run, target).round for target in (0.25, 0.45)] == [3, 5]
    assert bytes_to_reach(run, 0.55) is None


def test_who_waited_for_whom(folder):
    waited = enumerate([(1.0, 1), (0.5, 1), (0.25, 2)], start=1)
    waits = [done(0, number, float(number), idle_s=idle_s, waited_for=whom) for number, (idle_s, whom) in waited]
    reader = open_run(folder(node(0), node(1), *waits, done(1, 1, 9.0)))
    assert reader.waited_total.to_numpy().tolist() == [[0, 1, 1.5, 2], [0, 2, 0.25, 1]]
    assert reader.client_total[["idle_s", "virtual_s"]].to_numpy().tolist() == [[1.75, 3.0], [0.0, 9.0]]


def test_several_runs_are_compared_by_virtual_time_in_80_columns_and_seeds_averaged(folder, make_run, tmp_path):
    run = folder(*PROGRESS)
    groups = summarize_all([run, make_run("plain")], 0.6)
    text = printed(render_summary(groups), render_summary(groups, 0.6))
    assert text.count("virtual") >= 2
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    runs = []
    for seed, end in ((1, 10.0), (2, 20.0)):
        (path := tmp_path / f"seed-{seed}").mkdir()
        (path / "config.toml").write_text(f"seed = {seed}\n[algorithm]\nname = 'dfedu'\n")
        runs.append(write(path, node(0), done(0, 1, end, 0.5, idle_s=end / 5), event(LAUNCHER, "finish")))
    (group,) = summarize_all(runs, 0.5)
    figures = group.as_dict()["mean"]
    assert (figures["virtual_s"], figures["waited_share"], figures["virtual_s_to_reach"]) == (15.0, 0.2, 15.0)


def test_what_happened_is_told_in_a_line_a_cause_with_the_first_it_happened_to(folder):
    run = folder(
        node(2, "server"), event(2, "warning", detail="one"), event(LAUNCHER, "start"), event(LAUNCHER, "finish"),
        event(3, "warning", detail="x = 1.25 is large"), event(1, "warning", detail="x = 7e-3 is large"),
        event(3, "death", detail="killed by SIGKILL; the others go on without it", wall_s=2.0),
        event(3, "drop", detail="2 x foreign", wall_s=3.0),
        event(-2, "lost-records", detail="client 1: 3", wall_s=4.0),
        event(1, "crash", 1.0), event(2, "crash", 1.0), event(1, "restart", 2.0), event(5, "join", 2.0),
        owners='["", "Ann"]',
    )  # fmt: skip
    assert remarks_on(run) == [
        "warning: client 1 (Ann) and 1 more: x = 7e-3 is large",
        "warning: the server: one",
        "client 3 died: killed by SIGKILL; the others go on without it",
        "drop: client 3: 2 x foreign",
        "lost-records: the collector: client 1: 3",
        "scenario: 2 crashes, 1 restart, 1 client that joined late",
    ]
