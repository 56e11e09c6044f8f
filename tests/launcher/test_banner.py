"""What a run tells before it starts."""

import pytest

from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import prepare_run
from sheafgossip.launcher.run.display import Banner
from sheafgossip.metrics.reader import RunReader, read_owners

OWNERS = {"Ann": 9, "Bo": 2, "Cy": 8, "Di": 3, "Ed": 12}
ROWS = [
    f"{name};{age};{'yes' if age % 3 else 'no'};{age % 2}\n" for name, rows in OWNERS.items() for age in range(rows)
]
OWNED = """
rounds = 3
topology.kind = "ring"
data = { dataset = "table", root = "mine.csv", target = "ill", text = "one-hot" }
"""
SMALL = "clients = 5\ndata.samples = 200"


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").write_text("who;age;smokes;ill\n" + "".join(ROWS))

    def prepared(text, *overrides, name="run"):
        (tmp_path / "run.toml").write_text(text)
        (config,) = load(tmp_path / "run.toml", overrides)
        return prepare_run(config, tmp_path / name, Site(sockets=tmp_path, records="ipc:///nowhere"))

    return prepared


def told(prepared, banner=None):
    return {line[:12].rstrip(): line[12:] for line in (banner or Banner()).lines(prepared)}


def test_folder_clients_owners_split_local_work_and_model_are_told_and_owners_keep_their_names(prepared):
    run = prepared(OWNED, "clients=2", "data.client=who", "data.min_samples=4", "seed=1")
    lines, owners = told(run), read_owners(run.folder)
    assert len(owners) == 2 == len(set(owners.values()) & {"Ann", "Cy", "Ed"})
    assert list(map(tuple, RunReader(run.folder).owner.values)) == list(owners.items())
    clients, (split, _, _) = lines.pop("clients"), lines.pop("split").partition("a client has ")
    assert clients.startswith("2 of 3 owners, drawn by the seed: ")
    assert split == "each client has those of one owner; left out, with fewer than 4: Bo (2), Di (3); "
    assert lines == {
        "run folder": "run",
        "run": "sheaf-fmtl, 3 rounds, seed 1",
        "data": "table mine.csv: 34 samples, 3 features, classification; a semicolon stands between its columns; "
        "features: age, smokes=no, smokes=yes",
        "local work": "one step on all training samples a round, alpha 0.1",
        "model": "logistic, 3 inputs, 2 outputs, 8 parameters",
    }


def test_an_even_split_for_want_of_owners_is_told_and_nobody_is_given_a_name(prepared):
    run = prepared(OWNED, "clients=2", "data.client=''", "data.drop=['who']")
    lines, why = told(run), "shuffled and split evenly, as nobody owns them (data.client names owners)"
    assert lines["clients"] == "2"
    assert lines["split"].startswith(f"{why}; a client has 13 for training, 4 ")
    assert read_owners(run.folder) == {}
    assert len(RunReader(run.folder).owner) == 0


def test_what_local_work_means_is_told_and_of_the_next_run_only_what_differs(prepared):
    banner = Banner()
    told(prepared(SMALL, "training.work=steps", "training.steps=5", name="a"), banner)
    passes = "training.work=epochs", "training.batch_size=7", "training.l2=0.5"
    for name, overrides, text in (
        ("b", ("training.work=steps", "training.steps=3"), "3 mini-batches of 32 samples a round, alpha 0.1"),
        ("c", passes, "1 pass over the training samples in mini-batches of 7 a round, alpha 0.1, l2 0.5"),
    ):
        news = told(prepared(SMALL, *overrides, name=name), banner)
        assert news == {"run folder": name, "local work": text}
