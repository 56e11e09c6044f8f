"""How files, bases, tables of runs and overrides make a configuration. What is refused stands in bad_inputs.txt."""

import pytest

from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError, validate
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import prepare_run

EVERYTHING = """
name = "all of it"
seed = 7
clients = 12
rounds = 3

[topology]
kind = "watts-strogatz"
p = 0.1

[data]
samples = 500
rotations = [0, 180]
reduced_clients = 0.5

[model]
kind = "mlp"
hidden = [16, 8]
mix = [{ kind = "logistic", share = 2.0 }]

[training]
work = "steps"
alpha = 1

[algorithm]
name = "sheaf-fmtl"
gamma = 0.25
start = "orthogonal"

[checkpoints]
save_maps = true
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="run.toml"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def refusal(call, *arguments):
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    return str(caught.value)


def test_a_resolved_configuration_reads_back_equal(write):
    (config,) = load(write(EVERYTHING))
    assert load(write(config.to_toml(), "again.toml")) == [config]


def test_a_configuration_cannot_be_changed():
    config = validate({})
    for section, key in ((config, "rounds"), (config.training, "alpha"), (config.algorithm, "lam")):
        with pytest.raises(AttributeError):
            setattr(section, key, 5)


def test_several_mistakes_are_a_line_each():
    tree = {"clients": 0, "training": {"alpha": 0}, "model": {"mix": [{}, {"kidn": 1}]}}
    one, other, last = refusal(validate, tree).splitlines()
    assert one.startswith("clients = 0: ")
    assert other.startswith("model.mix.1.kidn: unknown key (did you mean kind?); allowed here: kind, ")
    assert last.startswith("training.alpha = 0: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [("compare = [1, 2]", "[[compare]]"), ("base = 'back.toml'", "base = 'run.toml'"), ("base = []", "base = []")],
)
def test_a_file_is_refused_with_the_key(write, text, said):
    write("base = 'run.toml'", "back.toml")
    assert said in refusal(load, write(text))


def test_an_override_wins_over_the_file_and_a_compare_table_over_both(write):
    path = write("rounds = 1\nclients = 3\n[[compare]]\nname = 'a'\nrounds = 9\n[[compare]]\nname = 'b'")
    runs = load(path, ["rounds=5", "clients=4"])
    assert [(run.label, run.rounds, run.clients) for run in runs] == [("a", 9, 4), ("b", 5, 4)]


def test_values_of_overrides_are_toml_words_need_no_quotes_and_the_later_wins(write):
    overrides = ["topology.kind=torus", "topology.kind=ring", 'name="5"', "model.kind=mlp", "model.hidden=[8, 4]"]
    (run,) = load(write(""), [*overrides, "checkpoints.save_maps=true"])
    assert (run.topology.kind, run.name) == ("ring", "5")
    assert (run.model.hidden, run.checkpoints.save_maps) == ((8, 4), True)


def test_a_compare_table_merges_key_by_key_but_another_algorithm_starts_anew(write):
    text = """
        [algorithm]
        name = "sheaf-fmtl"
        lam = 0.5
        gamma = 0.3
        [[compare]]
        algorithm = { name = "dfedu" }
        [[compare]]
        algorithm = { gamma = 0.7 }
        training = { l2 = 0.1 }
        [training]
        alpha = 0.5
        l2 = 0.3
    """
    other, same = load(write(text))
    assert (same.training.alpha, same.training.l2) == (0.5, 0.1)
    assert (other.algorithm.name, other.algorithm.lam) == ("dfedu", 0.001)
    assert (same.algorithm.name, same.algorithm.lam, same.algorithm.gamma) == ("sheaf-fmtl", 0.5, 0.7)


def test_relative_paths_start_at_the_files_folder_and_those_of_overrides_at_the_current_one(
    write, tmp_path, monkeypatch
):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    text = "data = { dataset = 'npz', root = 'mine' }\ntopology = { kind = 'file', path = '../edges.txt' }"
    path = write(text, "configs/run.toml")
    (run,) = load(path)
    assert (run.data.root, run.topology.path) == (tmp_path / "configs" / "mine", tmp_path / "edges.txt")
    (run,) = load(path, ["data.root=mine"])
    assert run.data.root == here / "mine"
    (run,) = load(write("[[compare]]\ndata = { dataset = 'npz', root = 'mine' }"))
    assert run.data.root == tmp_path / "mine"
    (run,) = load(write("base = 'configs/run.toml'"))
    assert run.data.root == tmp_path / "configs" / "mine"


def test_a_file_says_only_what_differs_from_its_base(write):
    write("rounds = 7\nclients = 3\n[training]\nalpha = 0.5\nl2 = 0.1", "other.toml")
    (run,) = load(write("base = 'other.toml'\nclients = 4\n[training]\nalpha = 0.25"))
    assert (run.rounds, run.clients, run.training.alpha, run.training.l2) == (7, 4, 0.25, 0.1)


def test_compare_tables_take_the_place_of_those_of_the_base(write):
    write("[[compare]]\nname = 'a'\n[[compare]]\nname = 'b'", "other.toml")
    assert [run.name for run in load(write("base = 'other.toml'\nrounds = 3"))] == ["a", "b"]
    assert [run.name for run in load(write("base = 'other.toml'\n[[compare]]\nname = 'c'"))] == ["c"]


def test_what_is_said_about_a_reproduction_is_no_part_of_the_run(write):
    assert load(write("[reproduction]\ntitle = 'x'")) == load(write("")) == [validate({})]


def test_over_tcp_there_are_keys_unless_loopback_does_without():
    assert validate({"transport": {"host": "10.1.2.3", "protocol": "tcp"}}).transport.keyed
    assert not validate({"transport": {"host": "127.0.0.5", "keys": False, "protocol": "tcp"}}).transport.keyed
    assert not validate({"transport": {"protocol": "ipc"}}).transport.keyed


@pytest.mark.parametrize(
    ("transport", "between"),
    [
        ({}, "none"),
        ({"codec": "int8"}, "int8"),
        ({"codec_between": "int8"}, "int8"),
        ({"codec": "int8", "codec_between": "none"}, "none"),
    ],
)
def test_edges_between_hosts_have_the_same_codec_unless_told_otherwise(transport, between):
    assert validate({"transport": transport}).transport.between == between


@pytest.mark.parametrize(
    ("algorithm", "transport", "said"),
    [
        (
            {"name": "fedavg"},
            {"codec_between": "top-k"},
            "transport.codec_between = 'top-k': algorithm.name = 'fedavg' with these settings needs every entry in "
            "every message; allowed: 'none', 'float16', 'bfloat16' and 'int8'",
        ),
        (
            {"name": "sheaf-fmtl", "start": "shared", "eta": 0, "rotate_every": 1},
            {"codec": "top-k"},
            "transport.codec = 'top-k': algorithm.name = 'sheaf-fmtl' with these settings needs every entry",
        ),
    ],
)
def test_a_codec_that_an_algorithm_does_not_tolerate_is_refused(tmp_path, algorithm, transport, said):
    config = validate({"algorithm": algorithm, "transport": transport})
    refused = refusal(lambda: prepare_run(config, tmp_path / "run", Site(sockets=tmp_path, records="ipc://nowhere")))
    assert refused.startswith(said)
    assert not (tmp_path / "run").exists()
