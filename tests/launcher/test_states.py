"""Clients as points of a plane, from states that were written by hand."""

import csv

import numpy as np
import pytest
from safetensors.numpy import save_file

import made
from foreign import CONFIG
from sheafgossip.launcher.studies.states import communities, draw_states

CLIENTS, GROUPS = 12, 3
GROUP = np.arange(CLIENTS) % GROUPS
BLOBS = 40 * np.eye(GROUPS, 50)[GROUP] + np.random.default_rng(0).standard_normal((CLIENTS, 50))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Models of three kinds; a server that kept two points a client but the last, and has put all into two parts."""
    folder = tmp_path_factory.mktemp("states") / "run"
    for number in (0, 4):
        kept = folder / "state" / f"round-{number:06}"
        kept.mkdir(parents=True)
        for client in range(CLIENTS):
            save_file({"theta": BLOBS[client]}, kept / f"node-{client:04}.safetensors")
        pairs = np.stack([BLOBS[:, :2], -BLOBS[:, :2]], axis=1)
        pairs[-1] = np.nan
        server = {"theta": BLOBS[0], "pairs": pairs, "part": GROUP // 2, "community": GROUP}
        save_file(server, kept / f"node-{CLIENTS:04}.safetensors")
    (folder / "config.toml").write_text(CONFIG)
    nodes = [made.node(client) for client in range(CLIENTS)]
    nodes += [made.sent(client, CLIENTS, 4, 10) for client in (0, 1, 3, 4, 5)]
    return made.write(folder, *nodes, made.node(CLIENTS, "server"), groups=",".join(map(str, GROUP)))


def drawn(what, run, out):
    out.mkdir(exist_ok=True)
    files = draw_states(what, [("a run", run)], "Title", "part", out)
    if not files:
        return None
    assert {path.suffix for path in files} == {".csv", ".svg", ".png"}
    with files[0].open() as file:
        return list(csv.DictReader(file))


def test_models_of_a_group_are_near_each_other_by_t_sne_and_twice_at_the_same_places(run, tmp_path):
    rows = drawn("models", run, tmp_path)
    assert [(int(row["client"]), int(row["group"]), int(row["round"])) for row in rows] == [
        (client, group, 4) for client, group in enumerate(GROUP)
    ]
    places = np.array([[float(row["x"]), float(row["y"])] for row in rows])
    distances = np.linalg.norm(places[:, None] - places, axis=2) + np.diag(np.full(CLIENTS, np.inf))
    assert (GROUP[distances.argmin(axis=1)] == GROUP).all()
    assert rows == drawn("models", run, tmp_path / "again")


def test_points_of_a_plane_are_where_they_are_in_the_colours_of_the_servers_parts(run, tmp_path):
    rows = drawn("pairs by part", run, tmp_path)
    assert [int(row["group"]) for row in rows] == np.repeat(GROUP[:-1] // 2, 2).tolist()
    places = [[float(row["x"]), float(row["y"])] for row in rows]
    np.testing.assert_allclose(places[::2], BLOBS[:-1, :2], rtol=1e-5)
    np.testing.assert_allclose(places[1::2], -BLOBS[:-1, :2], rtol=1e-5)


def test_of_what_no_run_kept_nothing_is_drawn(run, tmp_path):
    assert drawn("X", run, tmp_path) is drawn("models by cluster", run, tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_communities_are_counted_of_several_who_took_part_in_the_round(run):
    assert communities(run) == [2]  # 0 and 3, 1 and 4; 5 is alone
