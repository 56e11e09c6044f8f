import re

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
    with pytest.raises(AttributeError):
        config.rounds = 5
    with pytest.raises(AttributeError):
        config.training.alpha = 5.0
    with pytest.raises(AttributeError):
        config.algorithm.lam = 5.0


MISTAKES = {
    "a key that does not exist, with a suggestion": (
        {"training": {"aplha": 0.1}},
        ["training.aplha", "unknown key", "did you mean alpha?", "batch_size"],
    ),
    "a table that does not exist, with a suggestion": ({"toplogy": {}}, ["toplogy", "did you mean topology?", "data"]),
    "a key that has an algorithm's name": ({"local": 1}, ["local", "unknown key", "clients"]),
    "a word that is not one of a few": (
        {"topology": {"kind": "mesh"}},
        ["topology.kind = 'mesh'", "'ring'", "'torus'", "'file'"],
    ),
    "a number below what is allowed": ({"clients": 0}, ["clients = 0", "greater than or equal to 1"]),
    "a number above what is allowed": ({"topology": {"p": 1.5}}, ["topology.p = 1.5", "less than or equal to 1"]),
    "text for a number": ({"rounds": "many"}, ["rounds = 'many'", "integer"]),
    "true for a number": ({"clients": True}, ["clients = true", "integer"]),
    "a fraction for a whole number": ({"rounds": 2.5}, ["rounds = 2.5", "integer"]),
    "a value for a table": ({"model": 3}, ["model = 3", "a table"]),
    "a value for a list": ({"model": {"filters": 3}}, ["model.filters = 3", "a list"]),
    "a wrong entry of a list": ({"model": {"filters": [8, 0]}}, ["model.filters.1 = 0", "greater than or equal to 1"]),
    "a wrong key in one of several architectures": (
        {"model": {"mix": [{}, {"kidn": "mlp"}]}},
        ["model.mix.1.kidn", "did you mean kind?", "share"],
    ),
    "an angle that is no quarter turn": ({"data": {"rotations": [45]}}, ["data.rotations.0 = 45", "90", "270"]),
    "NaN": ({"training": {"alpha": float("nan")}}, ["training.alpha = nan", "finite"]),
    "an infinity": ({"algorithm": {"name": "dfedu", "lam": float("inf")}}, ["algorithm.lam = inf", "finite"]),
    "an algorithm that does not exist": (
        {"algorithm": {"name": "fedavgg"}},
        ["algorithm.name = 'fedavgg'", "'local'", "'sheaf-fmtl'"],
    ),
    "an algorithm without its name": ({"algorithm": {"gamma": 0.1}}, ["algorithm.name is missing", "'sheaf-fmtl'"]),
    "an algorithm that is no table": ({"algorithm": "local"}, ["algorithm = 'local'", "a table"]),
    "a key of another algorithm": (
        {"algorithm": {"name": "dfedu", "gamma": 0.1}},
        ["algorithm.gamma", "unknown key", "name, lam"],
    ),
    "a setting of an algorithm out of bounds": (
        {"algorithm": {"name": "sheaf-fmtl", "gamma": 0}},
        ["algorithm.gamma = 0", "greater than 0"],
    ),
    "a setting of an algorithm that is not one of a few": (
        {"algorithm": {"name": "sheaf-fmtl", "start": "zeros"}},
        ["algorithm.start = 'zeros'", "'gaussian'", "'orthogonal'"],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_names_key_value_and_what_is_allowed(mistake):
    tree, expected = MISTAKES[mistake]
    message = refusal(validate, tree)
    assert "\n" not in message
    assert [text for text in expected if text not in message] == []


def test_several_mistakes_are_a_line_each():
    lines = refusal(validate, {"clients": 0, "training": {"alpha": 0}}).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["clients", "training.alpha"]


REFUSED_FILES = {
    "clients = 3\nrounds = = 3\n": r"run.toml: not valid TOML: .*line 2",
    "compare = 3": r"\[\[compare\]\]",
    "[compare]\nname = 'a'": r"\[\[compare\]\]",
    "compare = [1, 2]": r"\[\[compare\]\]",
    "[[compare]]\ntraining = { aplha = 1 }": "training.aplha: unknown key",
    "base = 'nowhere.toml'": "nowhere.toml: cannot be read: No such file",
    "base = 'back.toml'": "base = 'run.toml'",
    "base = 3": "base = 3",
    "base = []": r"base = \[\]",
}


@pytest.mark.parametrize("text", REFUSED_FILES)
def test_a_file_is_refused_with_its_name_or_the_key(write, text):
    write("base = 'run.toml'", "back.toml")
    assert re.search(REFUSED_FILES[text], refusal(load, write(text)))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["training.alpha"], "write it as key=value"),
        (["=3"], "write it as key=value"),
        ([""], "write it as key=value"),
        (["clients=3", "clients.more=4"], "clients is a value"),
        (["training.alhpa=0.1"], "did you mean alpha?"),
        (["compare=1"], "--set compare"),
    ],
)
def test_an_override_is_refused_with_the_reason(write, overrides, said):
    assert said in refusal(load, write(""), overrides)


def test_an_override_wins_over_the_file_and_a_compare_table_over_both(write):
    path = write("rounds = 1\nclients = 3\n[[compare]]\nname = 'a'\nrounds = 9\n[[compare]]\nname = 'b'")
    runs = load(path, ["rounds=5", "clients=4"])
    assert [(run.label, run.rounds, run.clients) for run in runs] == [("a", 9, 4), ("b", 5, 4)]


def test_values_of_overrides_are_toml_words_need_no_quotes_and_the_later_wins(write):
    overrides = ["topology.kind=torus", "topology.kind=ring", 'name="5"', "model.kind=mlp", "model.hidden=[8, 4]"]
    (run,) = load(write(""), [*overrides, "checkpoints.save_maps=true"])
    assert (run.topology.kind, run.name) == ("ring", "5")
    assert (run.model.hidden, run.checkpoints.save_maps) == ((8, 4), True)


def test_a_compare_table_that_names_another_algorithm_replaces_the_whole_algorithm(write):
    text = """
        [algorithm]
        name = "sheaf-fmtl"
        lam = 0.5
        gamma = 0.3
        [[compare]]
        algorithm = { name = "dfedu" }
        [[compare]]
        algorithm = { gamma = 0.7 }
    """
    other, same = load(write(text))
    assert (other.algorithm.name, other.algorithm.lam) == ("dfedu", 0.001)
    assert (same.algorithm.name, same.algorithm.lam, same.algorithm.gamma) == ("sheaf-fmtl", 0.5, 0.7)


def test_a_compare_table_merges_with_other_tables_key_by_key(write):
    (run,) = load(write("[training]\nalpha = 0.5\nl2 = 0.1\n[[compare]]\ntraining = { alpha = 0.25 }"))
    assert (run.training.alpha, run.training.l2) == (0.25, 0.1)


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


def test_a_file_says_only_what_differs_from_its_base(write):
    write("rounds = 7\nclients = 3\n[training]\nalpha = 0.5\nl2 = 0.1", "other.toml")
    (run,) = load(write("base = 'other.toml'\nclients = 4\n[training]\nalpha = 0.25"))
    assert (run.rounds, run.clients, run.training.alpha, run.training.l2) == (7, 4, 0.25, 0.1)


def test_compare_tables_take_the_place_of_those_of_the_base(write):
    write("[[compare]]\nname = 'a'\n[[compare]]\nname = 'b'", "other.toml")
    assert [run.name for run in load(write("base = 'other.toml'\nrounds = 3"))] == ["a", "b"]
    assert [run.name for run in load(write("base = 'other.toml'\n[[compare]]\nname = 'c'"))] == ["c"]


def test_paths_of_a_base_start_at_its_own_folder(write, tmp_path):
    write("data.root = 'mine'", "below/other.toml")
    (run,) = load(write("base = 'below/other.toml'"))
    assert run.data.root == tmp_path / "below" / "mine"


def test_what_is_said_about_a_reproduction_is_no_part_of_the_run(write):
    assert load(write("[reproduction]\ntitle = 'x'")) == load(write("")) == [validate({})]


@pytest.mark.parametrize("host", ["0.0.0.0", "224.0.0.1", "localhost", "::1", "10.0.0.300", ""])
def test_a_host_that_neighbours_cannot_connect_to_is_refused(host):
    with pytest.raises(ConfigError, match=r"^transport\.host = "):
        validate({"transport": {"host": host}})


def test_without_keys_only_loopback_addresses_are_allowed():
    assert validate({"transport": {"host": "10.1.2.3", "protocol": "tcp"}}).transport.keyed
    assert not validate({"transport": {"host": "127.0.0.5", "keys": False, "protocol": "tcp"}}).transport.keyed
    assert not validate({"transport": {"protocol": "ipc"}}).transport.keyed
    with pytest.raises(ConfigError, match=r"needs keys = true; without keys it must be 127\.x\.x\.x$"):
        validate({"transport": {"host": "10.1.2.3", "keys": False}})


# -- codecs ------------------------------------------------------------------------------------------------------------


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
    ("transport", "said"),
    [
        ({"codec": "int4"}, "transport.codec = 'int4'; allowed: 'none', 'float16', 'bfloat16', 'int8' or 'top-k'"),
        ({"codec_between": "zip"}, "transport.codec_between = 'zip'; allowed: 'none', "),
        ({"keep": 0.0}, "transport.keep = 0.0: must be greater than 0"),
        ({"keep": 1.5}, "transport.keep = 1.5: must be less than or equal to 1"),
    ],
)
def test_an_unknown_codec_is_named_with_those_that_there_are(transport, said):
    assert said in refusal(validate, {"transport": transport})


@pytest.mark.parametrize(
    ("algorithm", "transport", "said"),
    [
        (
            {"name": "push-sum"},
            {"codec": "float16"},
            "transport.codec = 'float16': algorithm.name = 'push-sum' with these settings needs every vector as it is; "
            "allowed is 'none'",
        ),
        (
            {"name": "fedavg"},
            {"codec_between": "top-k"},
            "transport.codec_between = 'top-k': algorithm.name = 'fedavg' with these settings needs every entry in "
            "every message; allowed are 'none', 'float16', 'bfloat16' and 'int8'",
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
