"""Grids as they are written, which runs a sweep has, what their folders are called, and in which it goes on."""

import shutil

import pytest

import made
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.run.earlier import begin_anew, stage
from sheafgossip.launcher.studies.sweep import alone_in, parse_grids, plan, prepare
from sheafgossip.metrics.records import LAUNCHER
from sheafgossip.metrics.store import RunFolderError

SHEAF = "algorithm.name = 'sheaf-fmtl'\n"
COMPARED = "[[compare]]\nname = 'Ours'\n[[compare]]\nname = 'alone'\nalgorithm.name = 'local'\n"


@pytest.fixture
def sweep(tmp_path):
    def sweep(text="", *grids, seeds=1, overrides=()):
        (tmp_path / "sweep.toml").write_text(text)
        return plan(tmp_path / "sweep.toml", overrides, parse_grids(grids), seeds, tmp_path / "out")

    return sweep


def stages(plan):
    return [stage(run.config, run.folder) for run in plan.runs]


@pytest.mark.parametrize(
    ("text", "grids", "seeds", "folders"),
    [
        (SHEAF + "seed = 7", ["algorithm.gamma=0.01,0.1"], 2,
         ["gamma-0.01-seed-7", "gamma-0.1-seed-7", "gamma-0.01-seed-8", "gamma-0.1-seed-8"]),
        ("", [], 3, ["seed-0", "seed-1", "seed-2"]),
        (COMPARED, ["training.alpha=0.1,0.2", "rounds=5"], 1,
         [f"{name}-alpha-{alpha}-rounds-5-seed-0" for alpha in (0.1, 0.2) for name in ("ours", "alone")]),
        ("model.kind='logistic'", ["topology.kind=ring,star", "model.kind=logistic"], 1,
         [f"topology.kind-{kind}-model.kind-logistic-seed-0" for kind in ("ring", "star")]),
    ],
)  # fmt: skip
def test_runs_are_the_product_of_grids_and_tables_with_every_seed_and_are_called_by_their_values(
    sweep, text, grids, seeds, folders
):
    planned = sweep(text, *grids, seeds=seeds)
    assert [run.folder.name for run in planned.runs] == folders
    assert planned.keys[: len(grids)] == tuple(grid.partition("=")[0] for grid in grids)


def test_runs_have_their_values_and_a_grid_wins_over_everything(sweep):
    runs = sweep(SHEAF + "seed = 7", "algorithm.gamma=0.01,0.1", seeds=2).runs
    assert [(run.config.algorithm.gamma, run.config.seed) for run in runs] == [(0.01, 7), (0.1, 7), (0.01, 8), (0.1, 8)]
    text = "rounds = 1\n[[compare]]\nname = 'a'\nrounds = 2\n"
    assert [run.config.rounds for run in sweep(text, "rounds=4,5", overrides=["rounds=3"]).runs] == [4, 5]
    assert "algorithm.name" in sweep(COMPARED).keys


def test_what_only_the_data_can_tell_is_refused_and_nothing_is_left(sweep):
    planned = sweep("clients = 3\ntopology.kind = 'ring'\n", "data.samples=120,2")
    with pytest.raises(ConfigError, match=r"samples-2-seed-0: .*need 12 samples"), alone_in(planned.out):
        prepare(planned.runs)
    assert not planned.out.exists()


def test_only_one_sweep_is_in_a_folder(sweep, monkeypatch):
    monkeypatch.setattr("sheafgossip.launcher.studies.sweep._TAKEN_S", 0)
    out = sweep().out
    with alone_in(out), pytest.raises(ConfigError, match="another sweep is at work in it"), alone_in(out):
        pass
    with alone_in(out):
        pass


def test_values_are_read_as_in_toml_and_bare_words_need_no_quotes():
    texts = (
        "algorithm.gamma = 0.01, 0.03", "clients=4", "algorithm.name=dfedu,d-psgd", "time.staleness=0,free",
        "algorithm.start='shared',\"gaussian, so\"", "measuring.kernel=true,false", "model.hidden=[4],[4, 8]",
    )  # fmt: skip
    assert list(parse_grids(texts).values()) == [
        (0.01, 0.03), (4,), ("dfedu", "d-psgd"), (0, "free"), ("shared", "gaussian, so"), (True, False), ([4], [4, 8])
    ]  # fmt: skip


def write(run, kind=None):
    """A run's folder, as far as telling what it is needs it."""
    run.folder.mkdir(parents=True)
    (run.folder / "config.toml").write_text(run.config.to_toml())
    made.write(run.folder, *([made.event(LAUNCHER, kind)] if kind else []))


def test_finished_runs_are_told_from_those_that_began_and_those_that_are_missing(sweep):
    planned = sweep("", seeds=6)
    for run, kind in zip(planned.runs, ["finish", "failure", "interrupt", None], strict=False):
        write(run, kind)
    (planned.runs[4].folder / "shards").mkdir(parents=True)  # killed while its data was cut
    for round in ("round-000000", "round-000020"):
        (planned.runs[2].folder / "state" / round).mkdir(parents=True)
    assert stages(planned) == ["finished", "begun", "begun", "begun", "begun", "missing"]
    missing = planned.missing()
    assert [run.folder for run in missing] == [run.folder for run in planned.runs[1:]]
    begin_anew(missing)
    assert [run.has_checkpoint for run in missing] == [False, True, False, False, False]
    assert stages(planned) == ["finished", "missing", "begun", "missing", "missing", "missing"]


def test_a_sweep_can_grow_and_shrink(sweep):
    for run in sweep("", "rounds=3,4", seeds=2).runs:
        write(run, "finish")
    assert len(sweep("", "rounds=3,4,5", seeds=3).missing()) == 9 - 4
    assert sweep("", "rounds=4").missing() == []


@pytest.mark.parametrize(
    ("text", "grids", "why"),
    [
        ("clients = 5", ["rounds=3,4"], "holds a run of another configuration"),
        ("clients = 5", ["rounds=5"], "is no part of this sweep"),
        ("", ["rounds=3,4", "training.alpha=0.1"], "is no part of this sweep"),
    ],
)
def test_the_folder_of_another_sweep_is_refused(sweep, text, grids, why):
    for run in sweep("", "rounds=3,4").runs:
        write(run, "finish")
    with pytest.raises(ConfigError, match=f"rounds-3-seed-0:? {why}"):
        sweep(text, *grids).missing()


@pytest.mark.parametrize("name", ["thesis.tex", "config.toml", "runs.csv"])
def test_a_folder_with_nothing_of_the_sweep_is_refused_but_beside_its_runs_other_files_may_be(sweep, name):
    planned = sweep()
    planned.out.mkdir()
    (planned.out / name).write_text("irreplaceable")
    with pytest.raises(ConfigError, match=f"{name} is no part of this sweep"):
        planned.missing()
    planned.runs[0].folder.mkdir()
    (planned.runs[0].folder / "thesis.tex").write_text("irreplaceable")
    with pytest.raises(ConfigError, match="holds something else than a run"):
        planned.missing()
    shutil.rmtree(planned.runs[0].folder)
    write(planned.runs[0], "finish")
    assert planned.missing() == []


def test_a_run_that_still_goes_on_is_refused(sweep, monkeypatch):
    monkeypatch.setattr("sheafgossip.launcher.run.earlier.STORING_S", 0)
    planned = sweep()
    write(planned.runs[0], "start")
    with alone_in(planned.runs[0].folder), pytest.raises(RunFolderError, match="still going on"):
        planned.missing()
