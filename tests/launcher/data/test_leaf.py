"""LEAF's files, written as its data/utils/split_data.py writes them."""

import json
import zlib

import numpy as np
import pytest

import sheafgossip as sg
from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data.leaf import LETTERS
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load
from sheafgossip.launcher.data.shards import cut

LSTM = """
import torch
from torch import nn


class Letters(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(80, 8), nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, outputs)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x.long()))[0][:, -1])


def make(shape, outputs):
    return Letters(outputs)
"""
rng = np.random.default_rng(0)
LINE = " " * 80 + "Who's there? Nay, answer me: stand, & unfold yourself!"


def femnist(samples):
    return [(rng.integers(256, size=784) / 255).tolist() for _ in range(samples)], [k % 62 for k in range(samples)]


def shakespeare(samples):
    return [LINE[k : k + 80] for k in range(samples)], [LINE[k + 80] for k in range(samples)]


def sent140(samples):
    rows = [[str(k), "Mon Apr 06", "NO_QUERY", "ann", "good good day, isn't it?"] for k in range(samples)]
    return rows, [k % 2 for k in range(samples)]


def part(of, users, samples, **more):
    data = {user: dict(zip("xy", of(samples), strict=True)) for user in users}
    return {"users": list(users), "num_samples": [samples] * len(users), "user_data": data, **more}


def write(path, *contents):
    path.mkdir(parents=True)
    for number, content in enumerate(contents):
        (path / f"all_data_{number}_niid_0_keep_0_{path.name}_9.json").write_text(json.dumps(content))


def read(root, **keys):
    return load(DataSection(dataset="leaf", root=root, **keys), 0)


def test_femnist_has_images_its_users_and_its_split(tmp_path):
    trains = part(femnist, ["f2", "f0"], 9), part(femnist, ["f1"], 4)
    tests = part(femnist, ["f2", "f0"], 2), part(femnist, ["f1"], 1)
    write(tmp_path / "data" / "train", *trains)
    write(tmp_path / "data" / "test", *tests)
    for root in (tmp_path, tmp_path / "data"):
        pool = read(root)
        every = [file["user_data"][user] for file in (*trains, *tests) for user in file["users"]]
        assert np.array_equal(pool.x, np.float32([x for each in every for x in each["x"]]).reshape(-1, 1, 28, 28))
        assert pool.y.tolist() == [y for each in every for y in each["y"]]
        assert pool.owners == ("f0", "f1", "f2")
        assert pool.client.tolist() == np.repeat([2, 0, 1, 2, 0, 1], [9, 9, 4, 2, 2, 1]).tolist()
        assert pool.tests.tolist() == [False] * 22 + [True] * 5
    shards = list(cut(DataSection(dataset="leaf", root=tmp_path), pool, 3, 0))
    assert [(each.about.owner, len(each.x_train), len(each.x_test)) for each in shards] == [
        ("f0", 9, 2),
        ("f1", 4, 1),
        ("f2", 9, 2),
    ]


def test_letters_of_shakespeare_are_places_in_the_alphabet_of_leaf(tmp_path):
    content = part(shakespeare, ["HAMLET", "GHOST"], 50, hierarchies=["play", "play"])
    content["user_data"]["GHOST"]["x"][0] = "{" + "é" * 79
    write(tmp_path / "all", content)
    pool = read(next((tmp_path / "all").glob("*.json")))
    assert pool.outputs == len(LETTERS) == 80
    assert "".join(LETTERS[int(letter)] for letter in pool.inputs(np.array([49]))[0]) == LINE[49:129]
    assert [LETTERS[label] for label in pool.y[:50]] == list(LINE[80:130])
    assert (pool.x[50] == LETTERS.index(" ")).all()
    assert pool.told == ("80 letters that are not among LEAF's 80 are read as blanks",)


def test_words_of_sent140_are_counted_at_the_places_of_their_hashes(tmp_path):
    write(tmp_path / "train", part(sent140, ["ann", "bo"], 4))
    pool = read(tmp_path, words=50)
    expected = np.zeros(50)
    for word in ("good", "good", "day", ",", "isn't", "it", "?"):
        expected[zlib.crc32(word.encode()) % 50] += 1
    assert pool.inputs(np.arange(8)).tolist() == [expected.tolist()] * 8
    assert pool.y.tolist() == [0, 1, 0, 1] * 2


def test_users_of_training_and_testing_who_differ_are_pooled_and_it_is_told(tmp_path):
    write(tmp_path / "train", part(femnist, ["a", "b"], 8))
    write(tmp_path / "test", part(femnist, ["c"], 8))
    pool = read(tmp_path)
    assert pool.tests is None
    assert pool.owners == ("a", "b", "c")
    assert "different users" in pool.told[0]


@pytest.mark.parametrize(
    ("of", "keys"),
    [
        (femnist, {"model": {"kind": "cnn", "filters": [2]}}),
        (shakespeare, {"model.use": "lstm.py:make"}),
        (sent140, {"data.words": 30}),
    ],
)
def test_a_run_keeps_users_and_split(tmp_path, monkeypatch, of, keys):
    write(tmp_path / "data" / "train", part(of, ["a", "b", "c"], 6))
    write(tmp_path / "data" / "test", part(of, ["a", "b", "c"], 3))
    (tmp_path / "lstm.py").write_text(LSTM)
    monkeypatch.chdir(tmp_path)
    config = {
        "clients": "all",
        "rounds": 2,
        "data.dataset": "leaf",
        "data.root": "data",
        "topology.kind": "ring",
    } | keys
    run = sg.run(config, out=tmp_path / "run", quiet=True, engine="threads")
    clients = run.nodes.query("role == 'client'")
    assert clients[["train_samples", "test_samples"]].values.tolist() == [[6, 3]] * 3
    assert run.owner["owner"].tolist() == ["a", "b", "c"]
    assert run.rounds.query("round == 2")["test_loss"].notna().all()


def changed(of, **changes):
    content = part(of, ["a", "b"], 4)
    content["user_data"]["b"] |= changes
    return [content]


@pytest.mark.parametrize(
    ("contents", "keys", "said"),
    [
        ([], {}, "it holds neither folders train and test nor .json files"),
        ([{"users": []}], {}, "is no file of LEAF, or damaged: Object missing required field `user_data`"),
        ([{"users": "a", "user_data": {}}], {}, "is no file of LEAF, or damaged: Expected `array`, got `str`"),
        ([{"users": ["a"], "user_data": {}}], {}, "user_data lacks a, one of users"),
        ([{"users": [], "user_data": {}}], {}, "its users have no samples"),
        ([part(femnist, ["a"], 4) | {"num_samples": [5]}], {}, "num_samples says 5 of a, who has 4"),
        ([part(femnist, ["a"], 4)] * 2, {}, "user a is in another file, too"),
        (changed(femnist, y=[0]), {}, "num_samples says 4 of b, who has 1"),
        (changed(femnist, x=[[0.5] * 784]), {}, "user b: x has 1 samples and y has 4"),
        (changed(femnist, x=[[1.0, 2.0]] * 4), {}, "samples of b are .*(2,).*, of a .*(784,)"),
        (changed(femnist, x=[[1.0], [1.0, 2.0]] * 2), {}, "user b: x is neither numbers of one shape nor text"),
        (changed(femnist, x=[[[["a"]]]] * 4), {}, "user b: x is neither numbers of one shape nor text"),
        (changed(femnist, x=[["nan"] * 784] * 4), {}, "user b: x is neither numbers|x of b holds NaN"),
        (changed(femnist, x=[[1e300] * 784] * 4), {}, "x of b holds NaN, an infinity or a number beyond float32"),
        (
            changed(femnist, x=["000001.jpg"] * 4),
            {},
            'such as "000001.jpg", but not of one length with the next letter',
        ),
        (changed(shakespeare, x=["ab", "c"] * 2), {}, 'such as "ab", but not of one length'),
        (changed(shakespeare, y=[1, 2, 3, 4]), {}, "but not of one length with the next letter as y"),
        (changed(sent140), {}, "x is text: write data.words = 1000 to count words"),
    ],
)
def test_what_is_no_file_of_leaf_is_told_in_a_line(tmp_path, contents, keys, said):
    write(tmp_path / "train", *contents)
    with pytest.raises(DataError, match=said) as error:
        read(tmp_path, **keys)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"users": [], "user_data": {"a": {"x": [1], "y": [1]}', "\xff"]
)
def test_a_damaged_file_is_told_in_a_line(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match="json is no file of LEAF, or damaged: "):
        read(tmp_path)
    deep = '{"users": ["a"], "user_data": {"a": {"x": %s, "y": [1]}}}'
    (tmp_path / "a.json").write_text(deep % ("[" * 100_000 + "]" * 100_000))
    with pytest.raises(DataError, match="json"):
        read(tmp_path)


def test_a_file_larger_than_the_memory_that_is_free_is_not_read(tmp_path, monkeypatch):
    write(tmp_path / "train", part(femnist, ["a"], 4))
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 10_000}))
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda self: pytest.fail("it is read"))
    with pytest.raises(DataError, match="more than the memory that is free"):
        read(tmp_path)
