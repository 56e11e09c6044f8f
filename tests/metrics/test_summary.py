"""A run in figures, from the folder alone: also what a scenario did to it, what a user is told of it, and runs that
differ in their seed alone."""

import json
import math
import re
import statistics

import pytest
from hypothesis import given, strategies as st

from made import START, done, event as at_wall, node, printed, sent, write
from sheafgossip.metrics import bytes_to_reach, open_run, virtual_time_to_reach
from sheafgossip.metrics.board import curve_of
from sheafgossip.metrics.comparison import render_summary, summarize_all
from sheafgossip.metrics.events import remarks_on
from sheafgossip.metrics.figures import AVERAGED, FIGURES
from sheafgossip.metrics.records import COLLECTOR, LAUNCHER, OverheadRecord, ResourceRecord, UsedRecord, WorkRecord
from sheafgossip.metrics.summary import Reached, ReachedVirtually, Spread, mean, summarize, worst


@pytest.fixture
def folder(tmp_path):
    """Writes records into a run's folder."""
    return lambda *records, metric="accuracy", **facts: write(tmp_path, *records, metric=metric, **facts)


def shown(groups, target=None, width=80, *, every=False) -> str:
    return printed(render_summary(groups, target, width, every=every), width=width)


def shown_all(folder, target=None) -> str:
    return shown(summarize_all([folder], target), target, every=True)


def after(client, number, virtual_s, metric=None, idle_s=0.0, wall_s=0.0, **others):
    return done(client, number, metric, wall_s, virtual_s=virtual_s, idle_s=idle_s, **others)


def event(client, kind, virtual_s=None, detail="", wall_s=0.0):
    return at_wall(client, kind, wall_s, detail, virtual_s)


CRASHED = [node(0), node(1), node(2), after(0, 20, 1.0), after(1, 4, 1.0), event(1, "crash", 1.0)]
BACK = [after(2, 3, 1.0), event(2, "crash", 1.0), event(2, "restart", 2.0), after(2, 19, 3.0)]


@pytest.mark.parametrize(
    ("records", "clients", "rounds", "gone"),
    [
        ([node(0), node(1), done(0, 5), done(1, 3)], 2, 3, 0),
        ([node(0), node(1), done(0, 5)], 2, 0, 0),
        ([node(0), node(1, "server"), node(LAUNCHER, "launcher"), done(0, 5)], 1, 5, 0),
        ([*CRASHED, *BACK], 3, 19, 1),
        ([*CRASHED, *BACK, event(0, "leave", 4.0), event(2, "death")], 3, 20, 3),
    ],
    ids=["the slowest", "one that never reported", "not server and launcher", "not who has gone", "who got furthest"],
)
def test_rounds_are_those_that_all_but_who_has_gone_for_good_have_completed(folder, records, clients, rounds, gone):
    summary = summarize(folder(*records))
    assert (summary.clients, summary.rounds, summary.gone, summary.final) == (clients, rounds, gone, None)
    assert summary.as_dict()["flops"] is None
    assert (f"{rounds}, but for {gone} gone" in shown_all(summary.folder)) == (gone > 0)


def test_a_figure_is_defined_once():
    assert len(AVERAGED) == sum(bool(figure.key) for figure in FIGURES)
    assert len({figure.title for figure in FIGURES}) == len(FIGURES)
    assert all(figure.key for figure in FIGURES if figure.head)


def test_final_spreads_the_last_evaluation_of_each_client(folder):
    rounds = done(0, 1, 0.1), done(0, 2, 0.8), done(0, 3), done(1, 3, 0.6, wall_s=2.5)
    summary = summarize(folder(node(0), node(1), *rounds))
    assert (summary.final.mean, summary.final.worst_10, summary.wall_s) == (pytest.approx(0.7), 0.6, 2.5)
    assert summarize(folder(metric="mse")).final.worst_10 == 0.8  # the largest error


def test_bytes_memory_cpu_and_work_are_added_up(folder):
    def said(number: int, sizes: tuple[int, ...], cpu_s: float, *parts: int) -> ResourceRecord:
        return ResourceRecord(number, 1.0, 0, *sizes, cpu_s, sum(parts), *parts)

    work = [("gradient", 1.0, 100), ("gradient", 2.0, 300), ("maps", 2.0, 20)]
    run = folder(
        node(0), node(1), node(LAUNCHER, "launcher"), sent(0, 1, 1, 8), sent(1, 0, 2, 4),
        *(OverheadRecord(0, 1, kind, 1, 64) for kind in ("greeting", "hello", "confirmation")),
        OverheadRecord(1, 0, "greeting", 1, 64), OverheadRecord(0, COLLECTOR, "records", 9, 900),
        said(0, (10, 1, 900), 1.0, 9, 9, 9, 9), said(0, (20, 2, 500), 2.0, 1, 2, 3, 4),
        said(1, (30, 4, 700), 3.0, 10, 20, 30, 40), said(LAUNCHER, (1000, 1000, 5000), 0.5),
        *(WorkRecord(0, at, part, at, at, flops) for part, at, flops in work),
        WorkRecord(1, 1.0, "gradient", 1.0, 1.0, 5),
    )  # fmt: skip
    summary = summarize(run)
    told = summary.as_dict()
    assert told["traffic"] == {"messages": 2, "payload_bytes": 12, "message_bytes": 52, "wire_bytes": 72}
    assert told["overhead_bytes"] == {"confirmation": 64, "greeting": 128, "hello": 64, "records": 900}
    values = {figure.title: figure.of(summary) for figure in FIGURES}
    assert (values["opening connections"], values["confirmations of messages"]) == (192, 64)
    assert told["memory"] == {
        "clients_pss": 50, "clients_max_peak_rss": 900, "clients_median_uss": 3, "others_pss": 1000,
        "others_max_peak_rss": 5000, "clients_theta": 11, "clients_maps": 22, "clients_history": 33,
        "clients_buffers": 44,
    }  # fmt: skip
    assert (summary.clients_cpu_s, summary.others_cpu_s, summary.flops) == (5.0, 0.5, 325)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("", "running"),
        ("finish", "finished"),
        ("failure", "failed"),
        ("interrupt", "interrupted"),
        ("interrupt start finish", "finished"),
        ("collector", "interrupted"),  # the launcher died
        ("failure collector", "failed"),
    ],
)
def test_the_status_is_the_launchers_last_word(folder, words, status):
    summary = summarize(folder())
    assert (summary.status, summary.name, summary.algorithm) == ("running", folder().name, "?")  # without a config.toml
    said = {"collector": event(COLLECTOR, "interrupt")}
    events = [said.get(word) or event(LAUNCHER, word) for word in words.split()]
    assert summarize(folder(START, *events)).status == status


def config_of(seed: int, name: str = "", algorithm: str = "dfedu") -> str:
    return f'seed = {seed}\nname = "{name}"\nrounds = 2\n[algorithm]\nname = "{algorithm}"\n'


def test_runs_that_differ_only_in_seed_and_name_are_one_line_with_means_and_standard_errors_over_runs(make_run):
    means = {4: (0.70, 0.80), 5: (0.80, 0.90), 9: (0.90, 1.00)}  # 0.75, 0.85, 0.95
    configs = {seed: config_of(seed, f"dFedU seed {seed}") for seed in means}
    ends = {seed: ((0.1, 0.1), metrics) for seed, metrics in means.items()}
    folders = [make_run(f"r{k}", ends[k], config=each, payload=1000 * k) for k, each in configs.items()]
    (group,) = summarize_all(folders)
    assert (group.name, [run.seed for run in group.runs]) == ("dFedU", [4, 5, 9])
    told = group.as_dict()
    expected = {"test_metric": 0.85, "worst_10": 0.8, "payload_bytes": 12_000, "flops": 2 * (1_000_000 + 10_000)}
    expected |= {"clients_pss": 400, "clients_cpu_s": 3.0}
    assert {figure: told["mean"][figure] for figure in expected} == pytest.approx(expected)
    assert told["standard_error"]["test_metric"] == pytest.approx(0.1 / 3**0.5)  # deviations -0.1, 0, 0.1
    assert told["standard_error"]["payload_bytes"] == pytest.approx(2000 * 7**0.5 / 3**0.5)  # 8, 10, 18 kB
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    text = shown([group], width=100)
    assert "dFedU (3 seeds)" in text
    assert "85.0 ± 5.8" in text


def test_only_finished_runs_of_other_seeds_and_the_same_settings_are_samples_of_one_line(make_run):
    runs = [(1, "dfedu"), (1, "local"), (2, "dfedu"), (2, "local"), (1, "d-psgd"), (1, "dfedu")]
    folders = [make_run(f"{at}", config=config_of(seed, algorithm=name)) for at, (seed, name) in enumerate(runs)]
    folders.append(make_run("stopped", config=config_of(3), status="interrupt"))
    lines = [(group.runs[0].algorithm, [run.seed for run in group.runs]) for group in summarize_all(folders)]
    assert lines == [("dfedu", [1, 2]), ("local", [1, 2]), ("d-psgd", [1]), ("dfedu", [1]), ("dfedu", [3])]


@pytest.mark.parametrize(
    ("names", "together"),
    [
        (("D-PSGD", "D-PSGD"), "D-PSGD"),
        (("sheaf, gamma 0.1 (seed=10)", "sheaf, gamma 0.1 (seed=11)"), "sheaf, gamma 0.1"),
        (("sheaf_s1", "sheaf_s2"), "sheaf"),
        (("linseed 1", "linseed 2"), "linseed"),
        (("seed-1", "seed-2"), "dfedu"),
        (("monday", "tuesday"), "dfedu"),
    ],
)
def test_a_group_is_called_by_what_the_names_share_else_as_its_algorithm(make_run, names, together):
    (group,) = summarize_all([make_run(f"r{seed}", config=config_of(seed, name)) for seed, name in enumerate(names)])
    assert group.name == together


def test_a_target_adds_what_it_took_to_reach_it_unless_a_run_or_a_seed_did_not(make_run):
    folder = make_run(payload=3_000_000, config=config_of(1))
    other = make_run("other", ((0.1, 0.1), (0.2, 0.2)), config=config_of(1, algorithm="local"))
    groups = summarize_all([folder, other], target=0.6)
    reached, missed = (line for line in shown(groups, 0.6).splitlines() if re.search(r"\d ± \d", line))
    assert reached.split()[-4:] == ["1", "6.00", "6.00", "1.50"]
    assert missed.split()[-4:] == ["–"] * 4
    (group,) = summarize_all([folder, make_run("r2", ((0.1, 0.1),), config=config_of(2))], target=0.6)
    assert group.estimate("payload_bytes_to_reach") is None
    assert "by 1 of 2" in shown([group], 0.6)
    assert "rounds to reach 60 %" in shown(groups[:1], 0.6)
    assert "not reached" in shown(groups[1:], 0.6)


def test_a_narrow_terminal_keeps_the_names_and_the_metric_and_80_columns_the_virtual_time(make_run, folder):
    names = {"Sheaf-FMTL, one tenth": "dfedu", "local": "local"}
    runs = [make_run(name, config=config_of(1, title, name)) for title, name in names.items()]
    for width in (40, 60, 80):
        text = shown(summarize_all(runs), width=width)
        assert [word for word in (*names, "accuracy", "90.0 ± 10.0") if word not in text] == []
        assert "…" not in text
    groups = summarize_all([folder(*PROGRESS), runs[0]], 0.6)
    text = shown(groups) + shown(groups, 0.6)
    assert text.count("virtual") >= 2
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_single_run_shows_its_first_figures_and_the_rest_on_request_but_nothing_that_was_not_measured(make_run):
    (group,) = summarize_all([make_run("bare", config="[measuring]\nenabled = false\n")])
    assert [group.estimate(figure) for figure in ("payload_bytes", "clients_pss", "clients_cpu_s")] == [None] * 3
    assert " 0.00 " not in shown([group], every=True)
    few, every = (shown(summarize_all([make_run(f"{every}")]), every=every).splitlines() for every in (False, True))
    assert len(few) < 20 < len(every)
    first = [next(at for at, line in enumerate(few) if word in line) for word in ("accuracy", "wire", "PSS", "wall")]
    assert first == sorted(first)
    assert ["standard deviation" in "".join(lines) for lines in (few, every)] == [False, True]


a_value_a_client = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)
close = {"rel": 1e-6, "abs": 1e-6}


@given(a_value_a_client, st.floats(0.01, 1.0), st.randoms())
def test_a_spread_is_of_the_population_its_error_of_a_sample_and_the_worst_are_below_the_mean(values, share, random):
    spread, middle = Spread.of(values), statistics.fmean(values)
    deviation = statistics.pstdev(values)
    assert (spread.mean, spread.std, spread.variance) == pytest.approx((middle, deviation, deviation**2), **close)
    expected = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    assert spread.standard_error == pytest.approx(expected, nan_ok=True, **close)
    assert worst(values, share) <= middle + 1e-6
    assert worst(values, share, higher_is_better=False) >= middle - 1e-6
    assert worst(values, 1.0) == pytest.approx(middle, **close)
    assert worst(random.sample(values, len(values)), share) == worst(values, share)


def test_worst_takes_the_share_of_the_clients_rounded_up_in_the_direction_of_the_metric():
    for clients, share, taken in ((10, 0.1, 1), (11, 0.1, 2), (30, 0.1, 3), (3, 0.1, 1), (100, 0.07, 7)):
        assert worst(range(clients), share) == mean(range(taken))
    spread = Spread.of([1.0, 2.0, 3.0, 4.0, 10.0], higher_is_better=False)
    assert (spread.mean, spread.variance, spread.worst_10, spread.worst_20) == (4.0, 10.0, 10.0, 10.0)
    with pytest.raises(ValueError, match="one value a client"):
        Spread.of([])
    with pytest.raises(ValueError, match=r"share is 1\.5"):
        worst([1.0], 1.5)


def test_waiting_is_a_share_of_the_time_that_clients_are_there(folder):
    run = folder(
        node(0), node(1), node(2),
        after(0, 0, 0.0), after(0, 1, 4.0, idle_s=1.0), after(0, 2, 10.0, idle_s=2.0),
        after(1, 0, 0.0), after(1, 1, 2.0), event(1, "crash", 2.0), event(1, "restart", 5.0), after(1, 3, 8.0),
        event(2, "join", 6.0), after(2, 2, 7.0, idle_s=0.5),
    )  # fmt: skip
    conditions = summarize(run).conditions
    assert (conditions.virtual_s, conditions.waited_s) == (10.0, 3.5)
    assert conditions.waited_share == pytest.approx(3.5 / (10 + (8 - 3) + (7 - 6)))


def test_without_a_scenario_there_are_no_conditions_and_on_the_wall_clock_seconds_are_real(folder):
    run = folder(node(0), after(0, 1, None, 0.5, idle_s=None))
    assert summarize(run).conditions is None
    assert not re.search("virtual|waited", shown_all(run))
    events = event(0, "crash", wall_s=2.0), event(0, "restart", wall_s=5.0)
    folder(after(0, 1, None, idle_s=1.0, wall_s=2.0), *events, after(0, 2, None, wall_s=7.0))
    conditions = summarize(run).conditions
    assert (conditions.virtual_s, conditions.waited_share) == (None, pytest.approx(1 / 4))
    assert "virtual time" not in shown_all(run)


def test_vectors_that_were_used_late_early_or_not_at_all_and_who_waited_for_whom(folder):
    used = [UsedRecord(0, 5, 0, neighbour, number) for neighbour, number in enumerate((5, 5, 4, 1, 6, None))]
    waited = enumerate([(1.0, 1), (0.5, 1), (0.25, 2)], start=1)
    waits = [after(0, number, float(number), idle_s=idle_s, waited_for=whom) for number, (idle_s, whom) in waited]
    run = folder(node(0), node(1), *waits, after(1, 1, 9.0), *used)
    conditions, reader = summarize(run).conditions, open_run(run)
    assert (conditions.used, conditions.older, conditions.newer, conditions.missing) == (5, 2, 1, 1)
    assert "2 (33.3 %)" in shown_all(run)
    assert reader.used_total[["same_round", "older", "newer", "missing"]].sum().tolist() == [2, 2, 1, 1]
    assert reader.used_total["oldest"].max() == 4
    assert reader.waited_total.to_numpy().tolist() == [[0, 1, 1.5, 2], [0, 2, 0.25, 1]]
    assert reader.client_total[["idle_s", "virtual_s"]].to_numpy().tolist() == [[1.75, 3.0], [0.0, 9.0]]


PROGRESS = [
    *(node(0), after(0, 0, 0.0, 0.1), after(0, 1, 1.0, 0.5), after(0, 2, 2.0, 0.7), after(0, 3, 3.0, 0.9)),
    *(node(1), after(1, 0, 0.0, 0.3), after(1, 1, 2.0, 0.5), after(1, 2, 5.0), after(1, 3, 7.0, 0.6)),
]


def test_progress_in_virtual_time_is_the_mean_of_latest_evaluations_and_a_target_comes_with_its_bytes(folder):
    traffic = [sent(client, 1 - client, number, 10) for client in (0, 1) for number in (1, 2, 3)]
    run = folder(*PROGRESS, *traffic, OverheadRecord(0, 1, "confirmation", 100, 2_500_000))
    progress = open_run(run).virtual_progress
    assert progress["virtual_s"].tolist() == [0.0, 1.0, 2.0, 3.0, 7.0]
    assert progress["evaluated"].tolist() == [2] * 5
    assert progress["mean_test_metric"].tolist() == pytest.approx([0.2, 0.4, 0.6, 0.7, 0.75])
    assert virtual_time_to_reach(run, 0.6) == ReachedVirtually(2.0, 30, 90, 120)  # 2 rounds of client 0, 1 of client 1
    assert virtual_time_to_reach(run, 0.76) is None
    text = shown_all(run, 0.6)
    assert "virtual time to reach 60 %, s" in text
    assert summarize_all([run], 0.6)[0].estimate("payload_bytes_to_reach").mean == 30  # not the 40 of two whole rounds
    assert re.search(r"confirmations of messages, MB *│ +2.50", text)
    told = summarize(run, 0.6).as_dict()
    assert json.loads(json.dumps(told, allow_nan=False))["reached_virtually"]["virtual_s"] == 2.0
    late = folder(node(2), event(2, "join", 2.5), after(2, 2, 4.0, 0.0), event(0, "leave", 3.0))
    progress = open_run(late).virtual_progress
    assert progress["evaluated"].tolist() == [2, 2, 2, 2, 3, 3]
    assert progress["mean_test_metric"].iloc[-1] == pytest.approx(summarize(late).final.mean)
    assert virtual_time_to_reach(folder(metric="mse"), 0.2).virtual_s == 0.0  # an error must fall to its target


def test_neither_a_server_nor_an_attacker_keeps_a_target_from_being_reached_in_virtual_time(folder):
    others = node(2, "server"), after(2, 0, 0.0), after(2, 1, 1.5), node(3), after(3, 0, 0.0, 0.0)
    run = folder(
        *PROGRESS, *others, *[sent(client, 2, number, 10) for client in (0, 1) for number in (1, 2, 3)], attackers="[3]"
    )
    assert virtual_time_to_reach(run, 0.6) == ReachedVirtually(2.0, 30, 90, 120)
    points = [(0.2, 0.0, 0.0), (0.4, 10.0, 1.0), (0.6, 30.0, 2.0), (0.7, 40.0, 3.0), (0.75, 60.0, 7.0)]
    assert list(curve_of(run)) == [pytest.approx(point) for point in points]


def test_a_target_is_reached_in_the_first_round_good_enough_of_all_that_nobody_still_works_on(folder, make_run):
    late = folder(node(0), node(1), after(0, 0, 0.0, 0.9), after(1, 0, 0.0), after(1, 1, 5.0, 0.9))
    assert virtual_time_to_reach(late, 0.8).virtual_s == 5.0
    run = make_run(payload=100)
    assert bytes_to_reach(run, 0.6) == Reached(1, payload_bytes=200, message_bytes=240, wire_bytes=260, wall_s=1.5)
    assert bytes_to_reach(run, 0.9) == Reached(2, payload_bytes=400, message_bytes=480, wire_bytes=520, wall_s=2.5)
    assert bytes_to_reach(make_run("some", ((0.1, 0.1), (0.9, None), (0.7, 0.9))), 0.8).round == 2
    falling = make_run("mse", ((9.0, 7.0), (5.0, 3.0), (2.0, 2.0)), metric="mse")
    assert bytes_to_reach(falling, 4.0).round == 1
    assert bytes_to_reach(falling, 1.0) is None
    run = write(
        make_run("crashed", ()),
        node(0), node(1), node(2), *(after(0, number, number, number / 10) for number in range(7)),
        *(after(1, number, number, number / 10) for number in range(3)), event(1, "crash", 2.5),
        *(after(2, number, number, number / 10) for number in (0, 1, 2, 4, 5)),
    )  # fmt: skip
    assert [bytes_to_reach(run, target).round for target in (0.25, 0.45)] == [3, 5]
    assert bytes_to_reach(run, 0.55) is None


def test_what_happened_is_counted_and_told_in_a_line_a_cause_with_the_first_it_happened_to(folder):
    run = folder(
        node(2, "server"), after(0, 1, 1.0), event(2, "warning", detail="one"), event(LAUNCHER, "finish"),
        event(3, "warning", detail="x = 1.25 is large"), event(1, "warning", detail="x = 7e-3 is large"),
        event(3, "death", detail="killed by SIGKILL; the others go on without it", wall_s=2.0),
        event(3, "drop", detail="5 x foreign", wall_s=3.0), event(LAUNCHER, "scenario", 0.0, "slow"),
        event(-2, "lost-records", detail="client 1: 3", wall_s=4.0),
        event(1, "crash", 1.0), event(2, "crash", 1.0), event(1, "restart", 2.0), event(5, "join", 2.0),
        event(4, "leave", 1.0), event(0, "timeout", detail="12 waits ended by the deadline"),
        event(1, "timeout", detail="3 waits ended by the deadline"), owners='["", "Ann"]',
    )  # fmt: skip
    once = dict.fromkeys(("restart", "join", "leave", "death"), 1)
    assert summarize(run).conditions.events == once | {"crash": 2, "timeout": 15, "dropped": 5}
    assert remarks_on(run) == [
        "warning: client 1 (Ann) and 1 more: x = 7e-3 is large",
        "warning: the server: one",
        "client 3 died: killed by SIGKILL; the others go on without it",
        "drop: client 3: 5 x foreign",
        "lost-records: the collector: client 1: 3",
        "scenario: 2 crashes, 1 restart, 1 client that joined late, 1 client that left",
    ]
