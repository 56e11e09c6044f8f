"""Keys that are written and can have no effect are refused, or told."""

import re

import pytest

from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError, without_effect
from sheafgossip.launcher.studies.sweep import parse_grids, plan


@pytest.fixture
def write(tmp_path):
    def write(text, name="run.toml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "training.batch_size = 16",
            "training.batch_size = 16: .* 'full'; it needs 'steps' or 'epochs'",
        ),
        ("topology.kind = 'ring'\ntopology.k = 6", "topology.k = 6: .* it needs 'watts-strogatz' or 'random-regular'"),
        ("data.root = 'mine'", "data.root = .*mine': has no effect with data.dataset = 'digits'"),
        ("data.clusters.count = 3", "data.clusters: .* it needs 'clusters'"),
        (
            "data.partition = 'clusters'\ndata.clusters.smallest = 5",
            "data.clusters.smallest = 5: .* without data.clusters.exponent",
        ),
        ("[[model.mix]]\nkind = 'mlp'\npadding = true", "model.mix.0.padding = true: .* with model.mix.0.kind = 'mlp'"),
        ("model.share = 2.0", "model.share = 2.0: has no effect without model.mix"),
        (
            "transport.keep = 0.5",
            "transport.keep = 0.5: .* transport.codec = 'none' and transport.codec_between = 'same'; it needs 'top-k'",
        ),
        ("measuring.kernel = true", "measuring.kernel = true: has no effect with transport.protocol = 'ipc'"),
        (
            "[[faults]]\nkind = 'cut'\nrounds = [1, 2]\nfactor = 3.0",
            "faults.0.factor = 3.0: has no effect with faults.0.kind = 'cut'; it needs 'slow'",
        ),
        ("algorithm.name = 'fedavg'\ntopology.p = 0.5", "topology.p = 0.5: .* 'fedavg': its clients talk to a server"),
        ("algorithm.name = 'dfedu'\ntopology.weights = 'max-degree'", "topology.weights = 'max-degree': .* 'dfedu'"),
        ("algorithm = { name = 'd-psgd' }\ncheckpoints.save_maps = true", "checkpoints.save_maps = true: .* no maps"),
        ("algorithm = { name = 'ghn', graph = 'cosine', k = 5 }", "algorithm.k = 5: .* 'cosine'; it needs 'knn'"),
        (
            "algorithm = { name = 'sheaf-fmtl', eta = 0.0, exchange = 'fused' }",
            "algorithm.exchange = 'fused': .* without algorithm.eta",
        ),
    ],
)
def test_a_key_that_can_have_no_effect_is_refused_in_one_line(write, text, line):
    with pytest.raises(ConfigError, match=f"^{line}") as refusal:
        load(write(text))
    assert "\n" not in str(refusal.value)


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


def test_what_a_run_wrote_down_can_be_run_again(write):
    (config,) = load(write("algorithm = { name = 'fedsak' }", "first.toml"))
    assert load(write(config.to_toml())) == [config]


def test_a_key_of_several_runs_has_an_effect_in_one_of_them(write):
    both = "[[compare]]\nname = 'a'\n[[compare]]\nname = 'b'\ntraining = { work = 'epochs' }\n"
    assert len(load(write(f"training.batch_size = 16\n{both}"))) == 2
    with pytest.raises(ConfigError, match=r"^training\.batch_size = 16"):
        load(write("[[compare]]\nname = 'a'\ntraining = { batch_size = 16 }\n" + both.replace("'a'", "'c'")))


def test_what_a_base_says_for_itself_is_told_and_not_refused(write):
    write("training = { work = 'epochs', batch_size = 16 }", "base.toml")
    (config,) = load(write("base = 'base.toml'\ntraining = { work = 'full' }"))
    assert list(without_effect(config)) == ["training.batch_size"]
    with pytest.raises(ConfigError, match=r"^training\.epochs = 2"):
        load(write("base = 'base.toml'\ntraining = { work = 'full', epochs = 2 }"))


def test_an_override_without_effect_is_refused_and_what_it_leaves_without_one_is_told(write):
    path = write("training = { work = 'epochs', batch_size = 16 }\nalgorithm = { name = 'dfedu' }\ntopology.p = 0.5")
    with pytest.raises(ConfigError, match=r"^--set data\.beta=0\.1: data\.beta = 0\.1: has no effect"):
        load(path, ["data.beta=0.1"])
    (config,) = load(path, ["training.work=full", "algorithm.name=fedavg"])
    assert list(without_effect(config)) == ["training.batch_size", "topology.p"]


def test_a_grid_has_an_effect_at_one_of_its_points(write, tmp_path):
    path = write("clients = 5")
    both = parse_grids(["training.work=full,epochs", "training.batch_size=8,16"])
    assert len(plan(path, [], both, 1, tmp_path / "out").runs) == 4
    works = parse_grids(["training.work=full,steps"])
    assert len(plan(path, ["training.steps=3"], works, 1, tmp_path / "out").runs) == 2
    with pytest.raises(ConfigError, match=r"^--grid training\.batch_size: training\.batch_size = 8: has no effect"):
        plan(path, [], {"training.batch_size": (8, 16)}, 1, tmp_path / "out")


COMPARED = """
[algorithm]
name = "dfedu"
[[compare]]
name = "a"
algorithm = { name = "local" }
training = { alpha = 0.5 }
[[compare]]
name = "b"
algorithm = { name = "d-psgd" }
training = { alpha = 0.25, l2 = 0.1 }
"""


@pytest.mark.parametrize("override", ["algorithm.name=fedavg", "algorithm.lam=0.5", "training.alpha=0.1", "name=c"])
def test_an_override_that_every_compare_table_wins_over_is_refused_with_the_reason(write, override):
    key = override.partition("=")[0]
    with pytest.raises(ConfigError, match=re.escape(f"--set {key}: every [[compare]] table of the file sets it")):
        load(write(COMPARED), [override])


def test_an_override_that_some_runs_take_is_theirs(write):
    first, second = load(write(COMPARED), ["training.l2=0.5", "rounds=3"])
    assert (first.training.l2, second.training.l2, first.rounds) == (0.5, 0.1, 3)
