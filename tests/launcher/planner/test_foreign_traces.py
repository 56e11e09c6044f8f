"""Published traces keep their meaning, by the published rules written down again here; and no pickle is executed."""

import pickle
import random
from pathlib import Path

import pytest

from sheafgossip.launcher.planner.foreign_traces import convert
from sheafgossip.launcher.planner.traces import ClientTrace, TraceSection, read_traces
from sheafgossip.topology.errors import UserError

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def converted(path: Path, source: str, clients: int = 1000, *, repeat: bool = False) -> dict[int, ClientTrace]:
    out = path.with_name(f"{source}.csv")
    out.unlink(missing_ok=True)
    count, _ = convert(path, source, out, clients)
    return read_traces(TraceSection(out, repeat=repeat), count, 0)


def behaviour(rng: random.Random) -> dict:
    moments = sorted(rng.sample(range(1000), 2 * rng.randint(1, 6)))
    end = moments[-1] + rng.choice([0, 7])
    return {"duration": 9, "inactive": moments[1::2], "finish_time": end, "active": moments[::2], "model": "CPH1801"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_clients_are_there_when_fedscale_has_them_active(protocol, tmp_path):
    rng = random.Random(protocol)
    told = {str(rng.random()): behaviour(rng) for _ in range(30)}
    (tmp_path / "behave").write_bytes(pickle.dumps(told, protocol))
    traces = converted(tmp_path / "behave", "fedscale-availability", repeat=True)
    assert len(traces) == 30
    for trace, own in zip(traces.values(), told.values(), strict=True):
        for now in range(0, 4000, 13):
            rest = now % own["finish_time"]
            is_active = any(a <= rest < b for a, b in zip(own["active"], own["inactive"], strict=True))
            assert trace.available.at(now)[0] == is_active


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_fedscale_capacities_become_rates_and_speeds_against_the_median(protocol, tmp_path):
    told = {432802: {"computation": 162.0, "communication": 5648.1}, 2: {"computation": 81, "communication": 1000}}
    told[7] = {"computation": 40.5, "communication": 2000}
    (tmp_path / "capacity").write_bytes(pickle.dumps(told, protocol))
    traces = converted(tmp_path / "capacity", "fedscale-capacity")
    assert [trace.speed.at(1e9)[0] for trace in traces.values()] == [0.5, 1, 2]
    # FedScale sends a model of so many bytes in (bytes / 1024 * 8) / communication seconds, each way
    for rate in (traces[2].up, traces[2].down):
        assert rate.passed(1 << 20, 0.0, otherwise=1.0) == (1 << 20) / 1024 * 8 / 2000
    assert list(converted(tmp_path / "capacity", "fedscale-capacity", clients=2)) == [0, 1]


def test_clients_are_there_in_the_slots_of_their_pings_as_in_flgo(tmp_path):
    rng = random.Random(0)
    pings = [(id, 1000 + 15 * slot) for slot in range(200) for id in (7, 3, 12) if rng.random() < 0.6 or slot == 199]
    text = "id,timestamp\n" + "".join(f"{id},{moment}\n" for id, moment in pings)
    (tmp_path / "pings.csv").write_text(text)
    traces = converted(tmp_path / "pings.csv", "flgo-pings", repeat=True)
    first, last = pings[0][1], pings[-1][1]
    for trace, id in zip(traces.values(), dict(pings), strict=True):
        for now in range(0, 9000, 7):
            slot = now % (last - first) // 15 * 15
            assert trace.available.at(now)[0] == ((id, first + slot) in pings), now


class Dangerous:
    def __reduce__(self):
        return Path.touch, (Path("harm"),)


def test_a_pickle_of_more_than_plain_values_is_refused_and_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    entry = {"computation": 1.0, "communication": Dangerous()}
    for protocol in PROTOCOLS:
        Path("bad").write_bytes(pickle.dumps({1: entry}, protocol))
        with pytest.raises(UserError, match="damaged, or holds more than plain values"):
            convert(Path("bad"), "fedscale-capacity", Path("out.csv"), 10)
    assert not Path("harm").exists()
    assert not Path("out.csv").exists()


def test_damaged_pickles_give_rows_or_one_line(tmp_path):
    rng = random.Random(0)
    good = [pickle.dumps({number: behaviour(rng) for number in range(9)}, protocol) for protocol in PROTOCOLS]
    out, said = tmp_path / "out.csv", []
    for _ in range(1500):
        damaged = bytearray(rng.choice(good))
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        (tmp_path / "bad").write_bytes(damaged[: rng.choice([None, rng.randrange(len(damaged))])])
        try:
            convert(tmp_path / "bad", rng.choice(["fedscale-availability", "fedscale-capacity"]), out, 10)
            out.unlink()
        except UserError as error:
            said.append(str(error))
    assert len(said) > 900
    assert {len(text.splitlines()) for text in said} == {1}


@pytest.mark.parametrize(
    ("source", "told", "why"),
    [
        ("fedscale-capacity", {1: {"computation": 0, "communication": 1}}, "client 1 needs a number above 0 as 'comp"),
        ("fedscale-capacity", [3], "no dictionary"),
        ("fedscale-capacity", {}, "tells of no client"),
        ("fedscale-availability", {1: {"finish_time": 3, "active": [0]}}, "needs lists of seconds"),
        ("fedscale-availability", {1: {"finish_time": float("nan")}}, "needs a number above 0 as 'finish_time'"),
        ("flgo-pings", {}, "is no flgo-pings file"),
    ],
)
def test_what_is_no_such_file_is_told_in_a_line(source, told, why, tmp_path):
    (tmp_path / "bad").write_bytes(pickle.dumps(told))
    with pytest.raises(UserError, match=why):
        convert(tmp_path / "bad", source, tmp_path / "out.csv", 10)
