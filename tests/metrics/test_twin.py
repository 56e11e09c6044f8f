"""Planned and measured seconds side by side, of a folder made by hand whose differences are known."""

import json
import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import kendalltau

from made import done, event, node, printed, write
from runs import RunFolder
from sheafgossip.metrics.records import LAUNCHER, KernelRecord, UsedRecord
from sheafgossip.metrics.report.methods import methods_of
from sheafgossip.metrics.report.page import page
from sheafgossip.metrics.report.waits import planned
from sheafgossip.metrics.store import RunFolderError
from sheafgossip.metrics.twin import Seconds, Twin, save_links, twin_of
from sheafgossip.metrics.twins import Twins, kendall_tau, render
from sheafgossip.transport.array_file import ArrayFile

ENDS = {0: (1.0, 2.0, 3.0), 1: (1.5, 2.5, 4.0)}  # as planned, of two clients and three rounds
WALL = {0: (0.25, 1.25, 2.5, 3.5), 1: (0.125, 1.625, 2.625, 5.0)}  # as measured, from round 0
PLANNED_IDLE, IDLE = 0.125, (0.25, 0.5)
PORTS = "127.0.0.1:5000", "127.0.0.1:4001"


def plan_part(folder, client: int, **changes) -> None:
    ends = np.array(ENDS[client])
    arrays = {"start": np.append(0.0, ends[:-1]), "end": ends, "idle": np.full(3, PLANNED_IDLE)}
    arrays |= {"uses": np.arange(1, 4, dtype=np.int32).reshape(3, 1, 1), "neighbours": np.array([1 - client], np.int32)}
    ArrayFile(arrays | changes).save(folder / f"plan/node-{client:04d}.safetensors")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.toml").write_text('name = "two"\ntime.clock = "wall"\n')
    records = [event(LAUNCHER, "finish")]
    for client, walls in WALL.items():
        plan_part(tmp_path, client)
        idles = [None, *[IDLE[client]] * 3]
        records += [node(client)]
        records += [done(client, k, None, wall, idle_s=idles[k]) for k, wall in enumerate(walls)]
        records += [UsedRecord(client, k, 0, 1 - client, k) for k in (1, 2)]
        records += [KernelRecord(client, PORTS[client], PORTS[1 - client], 9, 9, 0.5 + client)]
    records += [UsedRecord(0, 3, 0, 1, 2), UsedRecord(1, 3, 0, 0, None)]  # an older one, and none
    save_links(tmp_path, {(0, 1): 0.75, (1, 0): 1.0})
    return write(tmp_path, *records)


def test_what_differs_is_told_with_its_round_client_and_link(folder):
    twin = twin_of(folder)
    assert (twin.name, twin.total, twin.start_s) == ("two", Seconds(4.0, 5.0), 0.25)
    assert twin.total.error == pytest.approx(-0.2)
    measured = {(each.client, each.round): each.seconds.measured for each in twin.rounds}
    assert measured == {(i, k): WALL[i][k] - WALL[i][k - 1] for i in (0, 1) for k in (1, 2, 3)}
    assert twin.round_quantiles() == (Seconds(1.0, 1.0), Seconds(1.0, 1.125), Seconds(1.375, 1.4375))
    assert twin.waiting == Seconds(6 * PLANNED_IDLE, 3 * sum(IDLE))
    assert [each.ends for each in twin.clients] == [Seconds(3.0, 3.5), Seconds(4.0, 5.0)]
    assert [(each.used, each.not_planned) for each in twin.clients] == [(3, 1), (2, 0)]
    assert [each[:2] + each.busy for each in twin.links] == [(0, 1, 0.75, 0.5), (1, 0, 1.0, 1.5)]
    rounds, clients, links = twin.largest(1)
    assert [each[:2] for each in rounds] == [(1, 3)]  # 1.5 s planned, 2.375 s measured
    assert [each.client for each in clients] == [1]
    assert [each[:2] for each in links] == [(1, 0)]
    told = printed(*render(Twins((twin,))))
    assert "-20.0" in told
    assert "messages used that were not planned: 1 of 5" in told
    assert json.loads(json.dumps(twin.as_dict()))["largest"]["rounds"][0]["round"] == 3


def test_what_was_not_measured_is_a_dash_and_said_once(folder):
    write(folder, event(0, "crash"))  # its counters went with it
    twin = twin_of(folder)
    assert [each.busy.measured for each in twin.links] == [None, None]
    told = printed(*render(Twins((twin,)), every=True))
    assert told.count("only the kernel knows") == 1
    assert twin.as_dict()["busy"]["measured_s"] is None


def test_a_report_has_both_in_a_section_of_its_own(folder):
    (method,) = methods_of([folder])
    (drawn,) = planned(method)
    assert drawn.data.to_numpy().tolist() == [[1, 1, 1.5, 1.25, 1.625], [2, 2, 2.5, 2.5, 2.625], [3, 3, 4, 3.5, 5]]
    section = (
        page([method], [], [(method, [])]).partition("<h2>Planned and measured</h2>")[2].partition("</section>")[0]
    )
    assert "<td>4.00 / 5.00</td>" in section
    assert "round 3 of client 1" in section
    plan_part(folder, 0, end=np.zeros(2))  # damaged
    assert methods_of([folder])[0].twin is None


def test_with_a_server_rounds_are_the_servers_and_links_without_a_counter_still_have_a_plan(folder):
    write(folder, node(1, "server"))
    RunFolder(folder).alter("DELETE FROM kernel")
    twin = twin_of(folder)
    assert {each.client for each in twin.rounds} == {1}
    assert twin.busy == Seconds(1.75, None)
    told = printed(*render(Twins((twin,))), width=200)
    assert "round 3 of the server" in told
    assert "rounds are the server's" in told


def test_a_round_after_a_pause_is_none_of_those_compared(folder):
    plan_part(folder, 0, start=np.array([0.0, 1.5, 2.0]))
    assert [each.round for each in twin_of(folder).rounds if each.client == 0] == [1, 3]


@pytest.mark.parametrize(
    "changes",
    [
        {"end": np.zeros(2)},
        {"uses": np.zeros((3, 1), np.int32)},
        {"neighbours": np.array(0)},
        {"idle": np.zeros(3, "?")},
    ],
    ids=str,
)
def test_a_plan_that_nobody_wrote_is_refused_in_one_line(folder, changes):
    plan_part(folder, 0, **changes)
    with pytest.raises(RunFolderError, match=r"node-0000.safetensors: cannot be read as a part of a plan"):
        twin_of(folder)


def test_a_run_without_a_plan_has_no_twin(tmp_path):
    (tmp_path / "config.toml").write_text('time.clock = "wall"\n')
    with pytest.raises(RunFolderError, match="nothing was planned"):
        twin_of(write(tmp_path))


def brute_force_tau(one, other) -> float:
    """Concordant less discordant pairs, over the geometric mean of the pairs that are no ties on either side."""
    pairs = [((a > b) - (a < b), (c > d) - (c < d)) for (a, c), (b, d) in combinations(zip(one, other, strict=True), 2)]
    untied = [sum(pair[side] != 0 for pair in pairs) for side in (0, 1)]
    return sum(a * b for a, b in pairs) / math.sqrt(math.prod(untied)) if all(untied) else math.nan


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=9))
def test_kendalls_tau_is_that_of_counted_pairs_ties_included(pairs):
    one, other = zip(*pairs, strict=True)
    found = kendall_tau(one, other)
    assert found == pytest.approx(brute_force_tau(one, other), nan_ok=True)
    if len(pairs) > 1:
        assert found == pytest.approx(kendalltau(one, other).statistic, nan_ok=True)


def test_several_runs_are_ranked_and_their_errors_have_a_median(folder):
    one = twin_of(folder)

    def other(planned: float, measured: float) -> Twin:
        (client, *_) = one.clients
        return Twin("", "other", 0.0, (), (client._replace(ends=Seconds(planned, measured)),), (), one.names)

    twins = Twins((one, other(1.0, 4.0), other(5.0, 4.0)))
    assert twins.median_error == pytest.approx(0.25)  # of 0.2, 0.75 and 0.25
    assert twins.kendall_tau == pytest.approx(brute_force_tau((4, 1, 5), (5, 4, 4)))
    assert "median error of the total time 25.0 %, Kendall's tau of the rankings 0.00, 3 runs" in str(twins)
    assert Twins(()).as_dict() == {"runs": [], "median_error": None, "kendall_tau": None}
