"""How files, bases, tables of runs and overrides make a configuration, and which of its keys have an effect. What is
refused stands in bad_inputs.txt."""

import re
from functools import cache
from pathlib import Path

import pytest

from sheafgossip.launcher.config import reference
from sheafgossip.launcher.config.effect import without_effect
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError, RunConfig, keys_of, validate
from sheafgossip.launcher.planner.scenario import Fault, UnlikeEdge
from sheafgossip.launcher.studies.reproduction import PAPER
from sheafgossip.launcher.studies.sweep import parse_grids, plan
from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.topology.section import Section

EVERYTHING = """
name = "all of it"
seed = 7
clients = 12
rounds = 3
topology = { kind = "watts-strogatz", p = 0.1 }
data = { samples = 500, rotations = [0, 180], reduced_clients = 0.5 }
model = { kind = "mlp", hidden = [16, 8], mix = [{ kind = "logistic", share = 2.0 }] }
training = { work = "steps", alpha = 1 }
algorithm = { name = "sheaf-fmtl", gamma = 0.25, start = "orthogonal" }
checkpoints = { save_maps = true }
"""
COMPARED = """
algorithm = { name = "dfedu" }
[[compare]]
name = "a"
algorithm = { name = "local" }
training = { alpha = 0.5 }
[[compare]]
name = "b"
algorithm = { name = "d-psgd" }
training = { alpha = 0.25, l2 = 0.1 }
"""
BOTH = "[[compare]]\nname = 'a'\n[[compare]]\nname = 'b'\n"


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


@pytest.mark.parametrize("text", [EVERYTHING, "algorithm = { name = 'fedsak' }"])
def test_a_resolved_configuration_reads_back_equal_and_a_reproductions_table_is_no_part_of_it(write, text):
    (config,) = load(write(f"{text}\n[reproduction]\ntitle = 'x'"))
    assert load(write(config.to_toml(), "again.toml")) == load(write(text)) == [config]


@pytest.mark.parametrize("path", sorted(PAPER.glob("*-small.toml")), ids=lambda path: path.stem)
def test_what_a_run_records_of_a_comparison_is_a_configuration_by_itself(write, path):
    for config in load(path):
        assert load(write(config.to_toml())) == [config]


def test_several_mistakes_are_a_line_each():
    tree = {"clients": 0, "training": {"alpha": 0}, "model": {"mix": [{}, {"kidn": 1}]}}
    one, other, last = refusal(validate, tree).splitlines()
    assert one.startswith("clients = 0: ")
    assert other.startswith("model.mix.1.kidn: unknown key (did you mean kind?); allowed here: kind, ")
    assert last.startswith("training.alpha = 0: ")


def test_the_later_override_wins_over_the_file_and_a_compare_table_over_both(write):
    overrides = ["topology.kind=torus", "topology.kind=ring", 'name="5"', "model.kind=mlp", "model.hidden=[8, 4]"]
    (run,) = load(write("name = 'a'"), [*overrides, "checkpoints.save_maps=true"])
    found = run.topology.kind, run.name, run.model.hidden, run.checkpoints.save_maps
    assert found == ("ring", "5", (8, 4), True)  # values are TOML, and words need no quotes
    runs = load(write(f"rounds = 1\nclients = 3\n{BOTH}rounds = 9"), ["rounds=5", "clients=4"])
    assert [(run.label, run.rounds, run.clients) for run in runs] == [("a", 5, 4), ("b", 9, 4)]
    first, second = load(write(COMPARED), ["training.l2=0.5", "rounds=3"])
    assert (first.training.l2, second.training.l2, first.rounds) == (0.5, 0.1, 3)


@pytest.mark.parametrize("override", ["algorithm.name=fedavg", "algorithm.lam=0.5", "training.alpha=0.1", "name=c"])
def test_an_override_that_every_compare_table_wins_over_is_refused_with_the_reason(write, override):
    said = refusal(load, write(COMPARED), [override])
    assert said.startswith(f"--set {override.partition('=')[0]}: every [[compare]] table of the file sets it")


def test_a_compare_table_merges_key_by_key_but_another_algorithm_starts_anew(write):
    text = """
        algorithm = { name = "sheaf-fmtl", lam = 0.5, gamma = 0.3 }
        training = { alpha = 0.5, l2 = 0.3 }
        [[compare]]
        algorithm = { name = "dfedu" }
        [[compare]]
        algorithm = { gamma = 0.7 }
        training = { l2 = 0.1 }
    """
    other, same = load(write(text))
    assert (same.training.alpha, same.training.l2) == (0.5, 0.1)
    assert (other.algorithm.name, other.algorithm.lam) == ("dfedu", 0.001)
    assert (same.algorithm.name, same.algorithm.lam, same.algorithm.gamma) == ("sheaf-fmtl", 0.5, 0.7)


def test_relative_paths_start_at_the_files_folder_and_those_of_overrides_at_the_current_one(
    write, tmp_path, monkeypatch
):
    here, mine = tmp_path / "here", "data = { dataset = 'npz', root = 'mine' }"
    here.mkdir()
    monkeypatch.chdir(here)
    path = write(f"{mine}\ntopology = {{ kind = 'file', path = '../edges.txt' }}", "configs/run.toml")
    (run,) = load(path)
    assert (run.data.root, run.topology.path) == (tmp_path / "configs" / "mine", tmp_path / "edges.txt")
    assert load(path, ["data.root=mine"])[0].data.root == here / "mine"
    assert load(write(f"[[compare]]\n{mine}"))[0].data.root == tmp_path / "mine"
    assert load(write("base = 'configs/run.toml'"))[0].data.root == tmp_path / "configs" / "mine"


def test_a_file_says_only_what_differs_from_its_base(write):
    write("rounds = 7\nclients = 3\ntraining = { alpha = 0.5, l2 = 0.1 }", "other.toml")
    (run,) = load(write("base = 'other.toml'\nclients = 4\n[training]\nalpha = 0.25"))
    assert (run.rounds, run.clients, run.training.alpha, run.training.l2) == (7, 4, 0.25, 0.1)
    write(BOTH, "other.toml")
    assert [run.name for run in load(write("base = 'other.toml'\nrounds = 3"))] == ["a", "b"]
    assert [run.name for run in load(write("base = 'other.toml'\n[[compare]]\nname = 'c'"))] == ["c"]
    write("base = 'run.toml'", "back.toml")
    assert "base = 'run.toml'" in refusal(load, write("base = 'back.toml'"))


def test_of_several_bases_the_later_one_wins_key_by_key(write):
    write("rounds = 7\ncompute = { step_s = 0.1, message_s = 0.2 }", "a.toml")
    write("base = 'a.toml'\nclients = 3\ncompute.step_s = 0.3", "b.toml")
    write("seed = 5\nrounds = 8", "c.toml")
    (run,) = load(write("base = ['c.toml', 'b.toml']\nseed = 6"))
    assert (run.seed, run.rounds, run.clients, run.compute.step_s, run.compute.message_s) == (6, 7, 3, 0.3, 0.2)
    assert (
        load(write("base = ['a.toml', 'b.toml', 'c.toml']"))[0].rounds == 8
    )  # one may be there twice, but not in itself
    assert "base = 'a.toml': must be" in refusal(load, write("base = ['c.toml', 'b.toml']", "a.toml"))


def test_over_tcp_there_are_keys_unless_told_otherwise_and_between_hosts_the_same_codec():
    for transport, keyed, between in (
        ({"protocol": "ipc"}, False, "none"),
        ({"host": "10.1.2.3", "protocol": "tcp", "codec": "int8"}, True, "int8"),
        ({"host": "127.0.0.5", "keys": False, "protocol": "tcp", "codec_between": "int8"}, False, "int8"),
        ({"codec": "int8", "codec_between": "none"}, False, "none"),
    ):
        found = validate({"transport": transport}).transport
        assert (found.keyed, found.between) == (keyed, between)


# -- keys that are written and can have no effect are refused, or told -------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "training.work = 'epochs'\ntraining.batch_size = 16",
        "topology.kind = 'watts-strogatz'\ntopology.k = 6\ntopology.p = 0.1",
        "algorithm = { name = 'ghn', graph = 'topology' }\ntopology.p = 0.5",
        "algorithm = { name = 'dfedu', weights = 'mixing' }\ntopology.weights = 'max-degree'",
        "model.mix = [{ kind = 'mlp', hidden = [8] }]\nmodel.share = 2.0",
        "data.dataset = 'npz'\ndata.root = 'x.npz'\ndata.client = ''",
        "model.filters = []",
    ],
)
def test_a_key_with_an_effect_is_taken(write, text):
    assert load(write(text))


def test_a_key_of_several_runs_or_of_a_grid_has_an_effect_in_one_of_them(write, tmp_path):
    both = f"{BOTH}training = {{ work = 'epochs' }}\n"
    assert len(load(write(f"training.batch_size = 16\n{both}"))) == 2
    alone = "[[compare]]\nname = 'c'\ntraining = { batch_size = 16 }\n"
    assert refusal(load, write(alone + both)).startswith("training.batch_size = 16")
    path, out = write("clients = 5"), tmp_path / "out"
    both_grids = parse_grids(["training.work=full,epochs", "training.batch_size=8,16"])
    assert len(plan(path, [], both_grids, 1, out).runs) == 4
    assert len(plan(path, ["training.steps=3"], parse_grids(["training.work=full,steps"]), 1, out).runs) == 2
    said = refusal(plan, path, [], {"training.batch_size": (8, 16)}, 1, out)
    assert said.startswith("--grid training.batch_size: training.batch_size = 8: has no effect")


def test_what_a_base_or_an_override_leaves_without_effect_is_told_and_not_refused(write):
    mine = "training = { work = 'epochs', batch_size = 16 }"
    write(mine, "base.toml")
    (config,) = load(write("base = 'base.toml'\ntraining = { work = 'full' }"))
    assert load(write(config.to_toml(), "recorded.toml")) == [config]
    assert list(without_effect(config)) == ["training.batch_size"]
    said = refusal(load, write("base = 'base.toml'\ntraining = { work = 'full', epochs = 2 }"))
    assert said.startswith("training.epochs = 2")
    path = write(f"{mine}\nalgorithm = {{ name = 'dfedu' }}\ntopology.p = 0.5")
    said = refusal(load, path, ["data.beta=0.1"])
    assert said.startswith("--set data.beta=0.1: data.beta = 0.1: has no effect")
    (config,) = load(path, ["training.work=full", "algorithm.name=fedavg"])
    assert list(without_effect(config)) == ["training.batch_size", "topology.p"]


# -- docs/configuration.md, which is made from the sections themselves -------------------------------------------------

describe = cache(reference.describe)
SECTIONS = {name: key.default for name, key in keys_of(RunConfig).items() if isinstance(key.default, Section)}
TABLES = {f"## `[{name}]`": type(section) for name, section in SECTIONS.items()}
TABLES |= {"## `[[faults]]`": Fault, "## `[[links.edges]]`": UnlikeEdge}
TABLES |= {f'### `name = "{name}"`': algorithm for name, algorithm in ALGORITHMS.items()}


def keys_below(title: str) -> dict[str, tuple[str, str]]:
    """{key: (its bounds and default, its meaning)}, as told between a heading and the next one."""
    text = describe().partition(f"{title}\n")[2].partition("\n#")[0]
    assert not text.lstrip().startswith("- ") or "outside" in title, "the table itself is not described"
    entries = re.findall(r"^- \*\*`(\w+)`\*\*(?: · (.*))?(?:\n\n  (.*))?", text, re.MULTILINE)
    return {key: (bounds, meaning) for key, bounds, meaning in entries}


def test_the_page_in_docs_is_up_to_date_and_has_no_table_among_the_keys_outside_tables():
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text() == describe() + "\n", "docs/configuration.md is stale: run `make docs`"
    assert set(keys_below("## Keys outside any table")) == set(keys_of(RunConfig)) - {*SECTIONS, "algorithm", "faults"}


@pytest.mark.parametrize("title", TABLES)
def test_every_key_of_every_table_is_described(title):
    found = keys_below(title)
    assert set(found) == set(keys_of(TABLES[title])) - ({"name", "use"} if title.startswith("###") else set())
    for key, (bounds, meaning) in found.items():
        if there := re.fullmatch("as with `(.+)`", bounds):  # whose text is too long to stand twice
            bounds, meaning = keys_below(f'### `name = "{there[1]}"`')[key]
        assert any(word in bounds for word in ("default", "required", "table")), key
        assert meaning, key
