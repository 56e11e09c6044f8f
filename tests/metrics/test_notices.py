from sheafgossip.metrics.events import remarks_on
from sheafgossip.metrics.records import EventRecord, NodeRecord
from sheafgossip.metrics.store import Store


def told(folder, *events: tuple[int, str, str]) -> list[str]:
    store = Store(folder / "run.sqlite")
    store.write(EventRecord(float(when), None, node, kind, detail) for when, (node, kind, detail) in enumerate(events))
    store.close()
    return remarks_on(folder)


def test_alike_warnings_of_many_clients_are_one_line_with_their_number(tmp_path):
    lines = told(
        tmp_path, (3, "warning", "x = 1.25 is large"), (1, "warning", "x = 7e-3 is large"), (3, "drop", "2 x foreign")
    )
    assert lines == ["warning: client 3 and 1 more: x = 1.25 is large", "drop: client 3: 2 x foreign"]


def test_starts_and_ends_are_no_remarks_on(tmp_path):
    assert told(tmp_path, (-1, "start", "ready"), (-1, "finish", "")) == []


def test_the_server_and_owners_are_told_by_name(tmp_path):
    store = Store(tmp_path / "run.sqlite")
    store.describe(owners='["", "Ann"]')
    store.write([NodeRecord(2, "server", "", 0, 0, 0, 0, "here", 1, "")])
    store.close()
    lines = told(tmp_path, (2, "warning", "one"), (1, "warning", "two"))
    assert lines == ["warning: the server: one", "warning: client 1 (Ann): two"]


def test_lost_records_are_told_of_the_collector(tmp_path):
    assert told(tmp_path, (-2, "lost-records", "client 1: 3")) == ["lost-records: the collector: client 1: 3"]
