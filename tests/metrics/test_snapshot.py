"""A run in progress in figures, from records written by hand."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from made import START, done, event, node, sent, write
from sheafgossip.metrics.events import Event
from sheafgossip.metrics.records import LAUNCHER, Record, ResourceRecord, WorkRecord
from sheafgossip.metrics.store import Store
from sheafgossip.metrics.summary import summarize
from sheafgossip.metrics.watch.snapshot import Follower

CONFIG = 'name = "first"\nclients = 3\nrounds = 10\n[algorithm]\nname = "dfedu"\n'


class Recorded:
    """A run's folder to which records are added while somebody follows it."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "config.toml").write_text(CONFIG)
        self.add()
        self.follower = Follower(folder)

    def add(self, *records: Record) -> None:
        write(self.folder, *records)

    def look(self, now: float = 0.0, *records: Record):
        """What there is to see once these records have been added."""
        self.add(*records)
        return self.follower.look(now, seconds=60)


@pytest.fixture
def run(tmp_path) -> Recorded:
    return Recorded(tmp_path)


def test_before_the_start_it_tells_how_many_clients_are_there_and_what_is_not_known_is_none(run):
    snapshot = run.look(0.0, node(0), node(1), node(3, "server"))
    assert (snapshot.name, snapshot.algorithm, snapshot.state) == ("first", "dfedu", "starting")
    assert (snapshot.started, snapshot.clients, snapshot.rounds, snapshot.completed) == (2, 3, 10, ())
    snapshot = run.look(0.0, START, done(0, 0))
    assert (snapshot.metric, snapshot.memory_bytes, snapshot.waited, snapshot.left_s) == (None, None, None, None)
    assert (snapshot.virtual_s, snapshot.payload_bytes, snapshot.payload_per_s) == (None, 0, None)


def test_rounds_and_memory_are_the_last_of_each_client_that_is_there_also_of_one_that_comes_back_or_joins_late(run):
    said = [(0, 5), (0, 7), (1, 100), (LAUNCHER, 1000)]
    run.add(*(ResourceRecord(number, 1.0, 0, pss, 0, 0, 0.0, 0) for number, pss in said))
    rounds = [done(0, k) for k in range(6)] + [done(1, k) for k in range(3)] + [done(2, k) for k in range(5)]
    assert run.look(0.0, START, node(0), node(1), node(2), *rounds).completed == (2, 4, 5)
    snapshot = run.look(0.0, event(1, "crash"))
    assert (snapshot.gone, snapshot.completed) == (1, (4, 5))
    assert (snapshot.memory_bytes, snapshot.memory_of) == (7, 1)
    assert run.look(0.0, event(1, "restart")).completed == (2, 4, 5)
    assert run.look(0.0, done(1, 7), done(1, 8), node(3), event(3, "join")).completed == (4, 5, 8)
    assert run.look(0.0, done(3, 4)).completed == (4, 4, 5, 8)


def test_the_metric_is_the_summarys_and_the_history_holds_rounds_that_half_completed_and_a_server_only_sends(run):
    run.add(node(3, "server"), done(3, 0, metric=0.9), sent(0, 3, 1, 100), sent(3, 0, 0, 10))
    first, second = ([done(client, k, metric=(0.1 + 0.2 * client) * k) for k in range(4 - client)] for client in (0, 1))
    snapshot = run.look(0.0, START, node(0), node(1), node(2), *first, *second, done(2, 0))
    assert (snapshot.completed, snapshot.payload_bytes) == ((0, 2, 3), 110)
    assert snapshot.metric == pytest.approx(0.45) == summarize(run.folder).final.mean
    assert snapshot.history == ((0, 0.0), (1, pytest.approx(0.2)), (2, pytest.approx(0.4)))


def test_bytes_are_the_payload_of_completed_rounds_and_their_rate_that_of_the_last_ten_seconds(run):
    rounds = [done(0, k, wall_s=float(k)) for k in range(31)]
    snapshot = run.look(100.0, START, node(0), *rounds, *(sent(0, 1, k, 1000) for k in range(1, 32)))
    assert (snapshot.payload_bytes, snapshot.payload_per_s) == (30_000, pytest.approx(1000))
    assert run.look(200.0).payload_per_s == 0.0  # where nothing goes on any more


def test_waiting_is_a_share_of_the_virtual_time_that_clients_were_there_or_of_the_work_they_told_last(run):
    spent = [("waiting", 1.0), ("gradient", 1.0), ("start", 50.0), ("waiting", 3.0), ("gradient", 9.0)]
    work = [WorkRecord(0, 1.0, part, 0.0, elapsed_s, 0) for part, elapsed_s in spent]
    assert run.look(0.0, START, node(0), node(1), *work).waited == pytest.approx(0.25)
    run.add(done(0, 1, virtual_s=10.0, idle_s=2.0, waited_for=1), done(1, 1, virtual_s=10.0, idle_s=4.0, waited_for=0))
    snapshot = run.look(0.0, done(0, 0, virtual_s=0.0, idle_s=0.0), done(1, 0, virtual_s=0.0, idle_s=0.0))
    assert (snapshot.waited, snapshot.waited_for, snapshot.virtual_s) == (pytest.approx(0.3), "client 0", 10.0)
    assert summarize(run.folder).conditions.waited_share == pytest.approx(0.3)


def test_time_left_follows_the_recent_pace_of_the_client_that_will_be_last_and_does_not_sink_while_a_round_lasts(run):
    rounds = [done(client, k, wall_s=(1.0 + client) * k) for client in (0, 1) for k in range(9 - 4 * client)]
    run.add(START, node(0), node(1), *rounds)
    assert [run.look(now).left_s for now in (50.0, 51.0, 59.0)] == pytest.approx([12.0, 11.0, 10.0])


def test_the_clock_goes_on_between_rounds_and_never_back(run):
    run.add(START, node(0), done(0, 0, wall_s=1.0))
    assert [run.look(now).elapsed_s for now in (100.0, 103.0)] == [1.0, 4.0]
    assert run.look(104.0, done(0, 1, wall_s=3.5)).elapsed_s == 5.0
    assert run.look(110.0, done(0, 2, wall_s=6.5), event(LAUNCHER, "finish")).elapsed_s == 6.5


def test_events_are_the_latest_without_the_launchers_own_and_counted_by_kind(run):
    run.add(START, event(1, "crash", 3.0, "before round 4"), event(1, "restart", 5.0, "takes part from round 6"))
    snapshot = run.look(0.0, event(0, "crash", 6.0, "before round 9"))
    assert snapshot.events[0] == Event(3.0, 1, "crash", "before round 4", "client 1")
    assert [event.kind for event in snapshot.events] == ["crash", "restart", "crash"]
    assert snapshot.counts == {"crash": 2, "restart": 1}


def test_it_tells_how_a_run_ended_and_leaves_nothing_in_its_folder(run):
    for kind, state in (("finish", "finished"), ("failure", "failed"), ("interrupt", "interrupted")):
        snapshot = run.look(0.0, START, node(0), done(0, 0), event(LAUNCHER, kind, detail="client 0 died\nthe rest"))
        assert (snapshot.state, snapshot.has_ended, snapshot.left_s) == (state, True, None)
        assert snapshot.cause == ("client 0 died" if kind == "failure" else "")
    assert sorted(run.folder.iterdir()) == [run.folder / "config.toml", run.folder / "run.sqlite"]


def test_a_look_without_time_goes_on_where_the_one_before_stopped(run):
    run.add(START, node(0), node(1), *(done(client, k) for client in (0, 1) for k in range(4)))
    looks = [run.follower.look(0.0, seconds=0.0) for _ in range(5)]
    assert [look.completed for look in looks] == [(0, 0), (1, 1), (2, 2), (3, 3), (3, 3)]
    assert [look.behind for look in looks] == [True, True, True, True, False]


def test_many_rounds_at_once_are_the_same_as_one_by_one_also_across_gaps(tmp_path):
    of_one = [*range(20), *range(30, 52), *range(54, 60)]
    there = {0: [*range(60)], 1: of_one, 2: [*range(5)], 3: [*range(8, 18)]}
    records = [done(client, k, metric=k / 60, wall_s=float(k)) for client, rounds in there.items() for k in rounds]
    traffic = [sent(client, 1, k, 7) for client, rounds in there.items() for k in rounds]
    comebacks = [event(1, "restart"), event(1, "restart"), event(3, "join")]
    runs = [Recorded(new) for name in ("at-once", "one-by-one") if not (new := tmp_path / name).mkdir()]
    for run in runs:
        run.add(START, *map(node, there), *comebacks, *traffic)
    at_once = runs[0].look(0.0, *records)
    for record in sorted(records, key=lambda record: record.round):
        one_by_one = runs[1].look(0.0, record)
    assert (at_once.completed, at_once.payload_bytes) == ((4, 17, 59, 59), 7 * len(records))
    assert at_once == replace(one_by_one, history=at_once.history)
    (rounds, means), others = zip(*at_once.history, strict=True), zip(*one_by_one.history, strict=True)
    assert [rounds, pytest.approx(means)] == [*others]  # sums in another order


def test_a_run_taken_up_again_is_read_anew_and_how_it_ended_before_is_no_news_to_who_takes_it_up(run):
    assert run.look(0.0, START, node(0), *(done(0, k, metric=0.5) for k in range(8))).completed == (7,)
    with closing(Store(run.folder / "run.sqlite")) as store:
        store.forget_after(3)
        store.write([START])
        store.commit()  # and still in the log
        assert run.follower.look().completed == (3,)
    run.add(node(1), *(done(0, k) for k in range(4, 8)), event(LAUNCHER, "interrupt"))
    follower = Follower(run.folder, anew=True)
    assert follower.look().state == "starting"
    run.add(node(0, pid=200))
    assert (follower.look().started, follower.look().completed) == (1, ())
    run.add(START, node(1, pid=201))
    assert (follower.look().state, follower.look().completed) == ("running", (7,))
