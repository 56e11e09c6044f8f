"""A run in figures, from the folder alone."""

import json
import re
from io import StringIO

import pytest
from rich.console import Console

from made import START, done, event, node, write
from sheafgossip.metrics.comparison import Group, summarize_all
from sheafgossip.metrics.figures import AVERAGED, FIGURES
from sheafgossip.metrics.records import (
    COLLECTOR,
    LAUNCHER,
    OverheadRecord,
    Record,
    ResourceRecord,
    TrafficRecord,
    WorkRecord,
)
from sheafgossip.metrics.summary import summarize
from sheafgossip.metrics.tables import render_summary


@pytest.fixture
def run(tmp_path):
    """Writes records into a run's folder and summarizes it."""

    def write_and_summarize(*records: Record, **facts: str):
        return summarize(write(tmp_path, *records, **facts))

    return write_and_summarize


@pytest.mark.parametrize(
    ("records", "clients", "rounds"),
    [
        ((node(0), node(1), done(0, 5), done(1, 3)), 2, 3),
        ((node(0), node(1), done(0, 5)), 2, 0),
        ((node(0), node(1, "server"), node(LAUNCHER, "launcher"), done(0, 5)), 1, 5),
    ],
    ids=["the slowest", "one that never reported", "not server and launcher"],
)
def test_rounds_are_those_that_every_client_has_completed(run, records, clients, rounds):
    summary = run(*records)
    assert (summary.clients, summary.rounds, summary.final) == (clients, rounds, None)


def test_final_spreads_the_last_evaluation_of_each_client(run):
    summary = run(node(0), node(1), done(0, 1, 0.1), done(0, 2, 0.8), done(0, 3), done(1, 3, 0.6, 2.5))
    assert summary.final.mean == pytest.approx(0.7)
    assert (summary.final.worst_10, summary.wall_s) == (0.6, 2.5)


def test_the_worst_client_has_the_largest_error_where_the_metric_is_one(run):
    summary = run(node(0), node(1), done(0, 1, 3.0), done(1, 1, 7.0), metric="mse")
    assert (summary.metric, summary.final.worst_10) == ("mse", 7.0)


def test_bytes_are_summed_at_three_levels_and_overhead_by_kind(run):
    summary = run(
        TrafficRecord(0, 1, 1, 1, 8, 40, 50),
        TrafficRecord(1, 0, 2, 1, 4, 20, 25),
        *(OverheadRecord(0, 1, kind, 1, 64) for kind in ("greeting", "hello", "confirmation")),
        OverheadRecord(1, 0, "greeting", 1, 64),
        OverheadRecord(0, COLLECTOR, "records", 9, 900),
    )
    traffic = summary.traffic
    assert (traffic.messages, traffic.payload_bytes, traffic.message_bytes, traffic.wire_bytes) == (2, 12, 60, 75)
    assert summary.overhead_bytes == {"confirmation": 64, "greeting": 128, "hello": 64, "records": 900}
    values = {figure.title: figure.of(summary) for figure in FIGURES}
    assert (values["opening connections"], values["confirmations of messages"]) == (192, 64)


def test_memory_and_state_are_what_each_process_said_last_and_its_highest_peak(run):
    def said(number: int, pss: int, uss: int, peak_rss: int, *parts: int) -> ResourceRecord:
        return ResourceRecord(number, 1.0, 0, pss, uss, peak_rss, 0.0, sum(parts), *parts)

    memory = run(
        node(0), node(1), node(LAUNCHER, "launcher"),
        said(0, 10, 1, 900, 9, 9, 9, 9), said(0, 20, 2, 500, 1, 2, 3, 4), said(1, 30, 4, 700, 10, 20, 30, 40),
        said(LAUNCHER, 1000, 1000, 5000),
    ).memory  # fmt: skip
    assert (memory.clients_pss, memory.clients_max_peak_rss, memory.clients_median_uss) == (50, 900, 3)
    assert (memory.others_pss, memory.others_max_peak_rss) == (1000, 5000)
    state = (memory.clients_theta, memory.clients_maps, memory.clients_history, memory.clients_buffers)
    assert state == (11, 22, 33, 44)


def test_cpu_of_clients_and_of_others_are_kept_apart(run):
    def spent(number: int, cpu_s: float) -> ResourceRecord:
        return ResourceRecord(number, 1.0, 0, 0, 0, 0, cpu_s, 0)

    summary = run(node(0), node(1), spent(0, 1.0), spent(0, 2.0), spent(1, 3.0), spent(COLLECTOR, 0.5))
    assert (summary.clients_cpu_s, summary.others_cpu_s) == (5.0, 0.5)


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([], "running"),
        ([START], "running"),
        ([START, event(LAUNCHER, "finish")], "finished"),
        ([START, event(LAUNCHER, "failure")], "failed"),
        ([START, event(LAUNCHER, "interrupt")], "interrupted"),
        ([START, event(LAUNCHER, "interrupt"), START, event(LAUNCHER, "finish")], "finished"),
        ([START, event(COLLECTOR, "interrupt")], "interrupted"),  # the launcher died
        ([START, event(LAUNCHER, "failure"), event(COLLECTOR, "interrupt")], "failed"),
    ],
)
def test_the_status_is_the_launchers_last_word(run, events, status):
    assert run(*events).status == status


def test_names_come_from_the_configuration_else_from_the_folder(run, tmp_path):
    assert (run().name, run().algorithm) == (tmp_path.name, "?")
    (tmp_path / "config.toml").write_text('name = "first try"\n[algorithm]\nname = "sheaf-fmtl"\n')
    assert (run().name, run().algorithm) == ("first try", "sheaf-fmtl")


def shown(groups, target=None, width=80, *, every=False) -> str:
    console = Console(width=width, file=StringIO())
    console.print(render_summary(groups, target, width, every=every))
    return console.file.getvalue()


@pytest.mark.parametrize("runs", [1, 3])
def test_every_figure_of_a_rendered_table_is_there(run, runs):
    summary = run(node(0), node(1), done(0, 1, 0.5), done(1, 1, 0.6), TrafficRecord(0, 1, 1, 1, 2_500_000, 3, 4))
    text = shown([Group(summary.name, (summary,))] * runs)
    assert "accuracy" in text
    assert text.count("55.0 ± 5.0") == runs
    assert text.count("2.50") == runs
    assert "…" not in text


def test_a_figure_is_defined_once():
    assert len(AVERAGED) == sum(bool(figure.key) for figure in FIGURES)
    assert len({figure.title for figure in FIGURES}) == len(FIGURES)
    assert all(figure.key for figure in FIGURES if figure.head)


def test_flops_are_summed_over_parts_and_clients_by_what_was_said_last(run):
    assert run(node(0), done(0, 1, 0.5)).as_dict()["flops"] is None
    counted = [(0, "gradient", 1.0, 100), (0, "gradient", 2.0, 300), (0, "maps", 2.0, 20), (1, "gradient", 1.0, 5)]
    work = [WorkRecord(client, wall_s, part, wall_s, wall_s, flops) for client, part, wall_s, flops in counted]
    assert run(node(0), node(1), *work).flops == 325


def test_what_was_not_measured_is_not_shown_as_zero(make_run):
    summary = summarize(make_run(config="[measuring]\nenabled = false\n"))
    assert not summary.measured
    group = Group("run", (summary,))
    assert [group.estimate(figure) for figure in ("payload_bytes", "clients_pss", "clients_cpu_s")] == [None] * 3
    assert " 0.00 " not in shown([group])


def config_of(seed: int, name: str = "", algorithm: str = "dfedu") -> str:
    return f'seed = {seed}\nname = "{name}"\nrounds = 2\n[algorithm]\nname = "{algorithm}"\n'


def test_runs_that_differ_only_in_seed_and_name_are_one_line_with_mean_and_standard_error_over_runs(make_run):
    means = {4: (0.70, 0.80), 5: (0.80, 0.90), 9: (0.90, 1.00)}  # 0.75, 0.85, 0.95
    folders = [
        make_run(f"r{seed}", (metrics,), config=config_of(seed, f"dFedU seed {seed}"))
        for seed, metrics in means.items()
    ]
    (group,) = summarize_all(folders)
    estimate = group.estimate("test_metric")
    assert (group.name, [run.seed for run in group.runs]) == ("dFedU", [4, 5, 9])
    assert estimate.mean == pytest.approx(0.85)
    assert estimate.standard_error == pytest.approx(0.1 / 3**0.5)  # deviations -0.1, 0, 0.1: sample variance 0.01
    assert group.estimate("worst_10").mean == pytest.approx((0.70 + 0.80 + 0.90) / 3)
    assert "dFedU (3 seeds)" in shown([group], width=100)
    assert "85.0 ± 5.8" in shown([group])


def test_every_figure_of_a_group_is_the_mean_over_its_runs(make_run):
    (group,) = summarize_all([make_run(f"r{seed}", config=config_of(seed), payload=1000 * seed) for seed in (1, 2)])
    figures = group.as_dict()
    assert figures["mean"]["payload_bytes"] == (4000 + 8000) / 2
    assert figures["standard_error"]["payload_bytes"] == pytest.approx(2000)  # |8000 - 4000| / 2 for two runs
    assert figures["mean"]["flops"] == 2 * (2_000_000 + 20_000)
    assert figures["mean"]["clients_pss"] == 400
    assert figures["mean"]["clients_cpu_s"] == 3.0
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures


def test_runs_of_other_settings_keep_lines_of_their_own_where_they_stood(make_run):
    folders = [
        make_run("a1", config=config_of(1)),
        make_run("b1", config=config_of(1, algorithm="local")),
        make_run("a2", config=config_of(2)),
        make_run("b2", config=config_of(2, algorithm="local")),
        make_run("c1", config=config_of(1, algorithm="d-psgd")),
    ]
    lines = [(group.runs[0].algorithm, [run.seed for run in group.runs]) for group in summarize_all(folders)]
    assert lines == [("dfedu", [1, 2]), ("local", [1, 2]), ("d-psgd", [1])]


def test_a_repetition_of_a_seed_and_a_run_that_has_not_finished_are_no_further_samples(make_run):
    folders = [make_run(f"r{number}", config=config_of(seed)) for number, seed in enumerate((1, 2, 1))]
    folders.append(make_run("r3", config=config_of(3), status="interrupt"))
    assert [[run.seed for run in group.runs] for group in summarize_all(folders)] == [[1, 2], [1], [3]]


@pytest.mark.parametrize(
    ("names", "together"),
    [
        (("D-PSGD", "D-PSGD"), "D-PSGD"),
        (("D-PSGD seed 0", "D-PSGD seed 1"), "D-PSGD"),
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


def test_a_target_adds_what_it_took_to_reach_it(make_run):
    folder = make_run(payload=3_000_000, config=config_of(1))
    other = make_run("other", ((0.1, 0.1), (0.2, 0.2)), config=config_of(1, algorithm="local"))
    groups = summarize_all([folder, other], target=0.6)
    assert groups[0].runs[0].reached.payload_bytes == 6_000_000
    assert groups[1].runs[0].reached is None
    reached, missed = (line for line in shown(groups, 0.6).splitlines() if re.search(r"\d ± \d", line))
    assert reached.split()[-4:] == ["1", "6.00", "6.00", "1.50"]
    assert missed.split()[-4:] == ["–"] * 4


def test_a_target_that_only_some_seeds_or_no_run_reaches_has_no_mean(make_run):
    folders = [make_run("r1", config=config_of(1)), make_run("r2", ((0.1, 0.1),), config=config_of(2))]
    (group,) = summarize_all(folders, target=0.6)
    assert group.estimate("payload_bytes_to_reach") is None
    assert "by 1 of 2" in shown([group], 0.6)
    assert "rounds to reach 60 %" in shown(summarize_all(folders[:1], target=0.6), 0.6)
    assert "not reached" in shown(summarize_all([make_run()], target=0.99), 0.99)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_keeps_the_names_and_the_metric(make_run, width):
    names = {"Sheaf-FMTL, one tenth": "dfedu", "local": "local"}
    folders = [make_run(algorithm, config=config_of(1, name, algorithm)) for name, algorithm in names.items()]
    text = shown(summarize_all(folders), width=width)
    assert all(name in text for name in names)
    assert "accuracy" in text
    assert "…" not in text


def test_a_single_run_shows_what_it_came_to_and_the_rest_on_request(make_run):
    groups = summarize_all([make_run()])
    few, all_ = (shown(groups, every=every).splitlines() for every in (False, True))
    assert len(few) < 20 < len(all_)
    first = [
        next(number for number, line in enumerate(few) if word in line) for word in ("accuracy", "wire", "PSS", "wall")
    ]
    assert first == sorted(first)
    assert any("standard deviation" in line for line in all_)
    assert not any("standard deviation" in line for line in few)
