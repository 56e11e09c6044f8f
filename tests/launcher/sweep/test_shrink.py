"""The search for the smallest configuration that still fails, against predicates that are known; conditions as they are
written; and what `sheafgossip shrink` keeps."""

import pytest
from hypothesis import given, settings, strategies as st

from sheafgossip.launcher.commands.shrink import Condition
from sheafgossip.launcher.config.effect import tidy
from sheafgossip.launcher.config.sections import ConfigError, RunConfig, validate
from sheafgossip.launcher.studies import shrink
from sheafgossip.launcher.studies.shrink import Candidate, Search, Verdict, ddmin
from sheafgossip.launcher.studies.simpler import simpler_faults, with_clients, with_faults_drawn

BEGIN = {"clients": 6, "rounds": 20, "algorithm": {"name": "d-psgd"}, "topology": {"kind": "ring"}}
BEGIN |= {"time": {"clock": "virtual", "deadline_s": 2.0}, "compute": {"step_s": 0.1, "slowdown": [1.0, 2.0]}}
BEGIN |= {"links": {"loss": 0.1, "latency_s": 0.2}, "data": {"dataset": "synthetic"}}

needs = st.lists(st.sets(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=3)


@given(needs, st.booleans())
def test_ddmin_returns_a_part_that_fails_and_that_no_item_can_be_left_out_of(wanted, odd):
    def fails(part):  # with an odd predicate larger parts may pass again
        return any(each <= set(part) for each in wanted) and not (odd and len(part) in (4, 7))

    def first(parts):
        return next((number for number, part in enumerate(parts) if fails(part)), None)

    found = ddmin(range(10), first)
    assert fails(found)
    assert not any(fails([each for each in found if each != one]) for one in found)


def fault(number):
    return {"kind": "slow", "clients": [number % 6], "rounds": [1 + number, 5 + number], "factor": 2.0 + number}


class Failure:
    """Fails with these faults, told apart by their factors, so many rounds and clients, and a condition."""

    def __init__(self, kinds, rounds, clients, key):
        self.kinds, self.rounds, self.clients, self.key, self.judged = kinds, rounds, clients, key, []

    def __call__(self, candidates):
        self.judged += [each.key for each in candidates]
        return [Verdict(self.fails(each.tree), "", 1.0) for each in candidates]

    def fails(self, tree):
        there = {int(each.get("factor", 10)) - 2 for each in tree.get("faults", [])}
        section, name = self.key.split(".")
        enough = tree["rounds"] >= self.rounds and tree["clients"] >= self.clients
        return self.kinds <= there and enough and name in tree.get(section, {})


@settings(max_examples=30)
@given(
    st.sets(st.integers(0, 7), max_size=3),
    st.integers(1, 12),
    st.integers(1, 6),
    st.sampled_from(["links.loss", "time.deadline_s", "compute.slowdown"]),
    st.integers(2, 4),
    st.floats(0, 1),
)
def test_the_smallest_fails_and_is_the_same_with_several_jobs_and_after_it_was_cut_off(
    monkeypatch, kinds, rounds, clients, key, jobs, share
):
    monkeypatch.setattr(shrink, "tidy", lambda tree: {key: each for key, each in tree.items() if each != {}})  # quick
    begin = Candidate("as it is", tidy(BEGIN | {"faults": [fault(number) for number in range(8)]}))
    alone, together = Failure(kinds, rounds, clients, key), Failure(kinds, rounds, clients, key)
    search = Search(begin, alone)
    assert search.begin().fails
    assert search()
    smallest = search.best.tree
    assert alone.fails(smallest)
    faults = smallest.get("faults", [])
    assert {int(each.get("factor", 10)) - 2 for each in faults} == kinds  # factors are needed, so 10 is never reached
    assert len(faults) == len(kinds)
    assert all(len(each["clients"]) == 1 and each["rounds"][0] == each["rounds"][1] for each in faults)
    least = max([rounds, *(each["rounds"][1] for each in faults)])
    assert (smallest["rounds"], smallest["clients"]) == (least, max(clients, len({*kinds} and {n % 6 for n in kinds})))

    cut = round(share * len(search.taken))
    known = {key: verdict for key, (_, verdict) in list(search.taken.items())[:cut]}
    again = Search(begin, together, at_once=jobs, known=dict(known))
    again.begin()
    assert again()
    assert (again.best, again.runs, again.kept) == (search.best, search.runs, search.kept)
    assert not set(together.judged) & known.keys()
    assert len(set(together.judged)) == len(together.judged)


def test_a_search_ends_with_the_best_so_far_when_no_more_runs_are_allowed():
    begin = Candidate("as it is", tidy(BEGIN | {"faults": [fault(number) for number in range(8)]}))
    judge = Failure({3}, 4, 2, "links.loss")
    search = Search(begin, judge, most=6)
    search.begin()
    assert not search()
    assert (search.runs, len(judge.judged)) == (6, 6)
    assert judge.fails(search.best.tree)


def test_what_few_samples_bring_about_by_themselves_is_not_taken_for_the_failure():
    class Few(Failure):
        def fails(self, tree):
            return (
                super().fails(tree) or tree["data"].get("synthetic", {}).get("samples", 100) < 30 or tree["rounds"] < 3
            )

    search = Search(Candidate("as it is", tidy(BEGIN | {"faults": [fault(1)]})), Few({1}, 1, 1, "links.loss"))
    search.begin()
    assert search()
    assert (search.best.tree["data"]["synthetic"]["samples"], search.best.tree["rounds"]) == (32, 3)


def test_drawn_faults_are_written_down_as_they_are_drawn():
    tree = tidy(BEGIN | {"chaos": {"crash": 0.5, "slow": 0.5, "cut": 0.5, "loss": 0.1, "partition": 1.0}})
    written = with_faults_drawn(tree)
    assert "chaos" not in written
    kinds = [each["kind"] for each in written["faults"]]
    assert {"crash", "slow", "cut", "partition", "loss"} == set(kinds)
    assert with_faults_drawn(written) == written == tidy(written)


def test_clients_keep_their_faults_and_links_under_new_numbers():
    faults = [{"kind": "cut", "edges": [[3, 4], [0, 1]]}, {"kind": "partition", "groups": [[4], [3]]}, fault(2)]
    links = {"edges": [{"between": [3, 4], "loss": 0.5}, {"between": [0, 5], "loss": 0.1}]}
    small = with_clients(BEGIN | {"faults": faults, "links": links}, 2)
    assert small["faults"] == [{"kind": "cut", "edges": [[0, 1]]}, {"kind": "partition", "groups": [[1], [0]]}]
    assert small["links"]["edges"] == [{"between": [0, 1], "loss": 0.5}]
    assert small["compute"]["slowdown"] == [2.0, 1.0]  # of clients 3 and 4


@given(st.builds(fault, st.integers(0, 7)))
def test_a_simpler_fault_is_another_that_is_allowed(one):
    for _, simpler in simpler_faults(one, BEGIN):
        assert simpler != one
        assert validate(BEGIN | {"faults": [simpler]}).faults


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accuracy", "write FIGURE < NUMBER"),
        ("accuracy < much", "write FIGURE < NUMBER"),
        ("accuracy < nan", "write FIGURE < NUMBER"),
        ("accuracy != 1", "write FIGURE < NUMBER"),
        ("accurancy < 1", "there is no figure accurancy; allowed: accuracy, mse, test_metric"),
        ("metric.f1 < 1", "there is no figure metric.f1"),
        ("", "write FIGURE < NUMBER"),
    ],
)
def test_a_condition_that_is_none_is_told_in_one_line(text, said):
    with pytest.raises(ConfigError, match=said) as told:
        Condition.of(text, RunConfig())
    assert "\n" not in str(told.value)
