"""The board: its files, its figures against closed forms, and a small one made, kept and checked."""

import math
from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np
import pytest

from runs import command
from sheafgossip.board import by_writer, opposed, other_heads
from sheafgossip.launcher.config.effect import tidy
from sheafgossip.launcher.config.files import load_one, tables_of
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.launcher.studies.board import Method, Problem, ours
from sheafgossip.launcher.studies.space import parse_space
from sheafgossip.launcher.studies.tuning import searched
from sheafgossip.metrics.board import Board, Entry, Result, best_of, front_of, read_board, target_of, thinned
from sheafgossip.metrics.report.board import places_of, sections_of
from sheafgossip.topology.errors import UserError

PROBLEM = """clients = 3
rounds = 3
[data]
samples = 90
[training]
work = "full"
[evaluation]
every = 1
[compute]
step_s = 0.01
[time]
clock = "virtual"
"""
METHOD = """[method]
title = "{name}"
search = {{ "training.alpha" = "0.1,0.3" }}
[algorithm]
name = "{name}"
"""


@pytest.mark.parametrize("problem", ours(Problem, []), ids=lambda each: each.name)
def test_each_problem_takes_each_method(problem):
    for method in ours(Method, []):
        assert load_one(problem.path, method.keys).algorithm.name == method.keys["algorithm.name"]


@pytest.mark.parametrize("method", ours(Method, []), ids=lambda each: each.name)
def test_an_entry_is_a_file_and_what_is_searched_has_an_effect(method):
    problem = ours(Problem, ["rotated"])[0]
    config = load_one(problem.path, method.keys)
    assert load_one(tidy(tables_of(problem.path, method.keys))).algorithm == config.algorithm  # as its own file
    assert searched(config, parse_space(method.about.search)).keys() == method.about.search.keys()


def test_each_writer_has_a_form_on_which_the_same_digits_were_to_be_written():
    x, y, client = by_writer()
    assert x.shape == (1797, 8, 8)
    assert (np.diff(client) >= 0).all()
    forms = [y[client == number].tolist() for number in range(14)]
    assert sum(map(len, forms)) == len(y)
    for form in forms:  # some digits are lacking, one has another class
        alike = SequenceMatcher(None, forms[0], form, autojunk=False)
        assert sum(block.size for block in alike.get_matching_blocks()) >= len(form) - 1
        assert form[:9] in ([0, 1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8, 9])


def test_opposed_tasks_are_one_question_and_its_opposite():
    (_, y, client), (_, digits, _) = opposed(), other_heads()
    digits = (digits - 3 * (client // 3)) % 10
    assert all(((y[client == number] + digits[client == number] + number // 6) % 2 == 1).all() for number in range(12))


def test_a_board_is_made_kept_and_checked(tmp_path):
    (tmp_path / "tiny.toml").write_text(PROBLEM)
    for name in ("dfedu", "flt"):
        (tmp_path / f"mine-{name}.toml").write_text(METHOD.format(name=name))
    (tmp_path / "mine-flt.toml").write_text(METHOD.format(name="flt") + "[data]\nfeatures_held = 0.5\n")
    words = ["board", "mine-dfedu.toml", "mine-flt.toml", "tiny.toml", "--method", "local", "--problem", "none"]
    words += ["--seeds", "2", "--trials", "2", "--out", "out"]
    command(*words, cwd=tmp_path)
    board = read_board(tmp_path / "out" / "board.json")
    names = ["tiny/local", "tiny/mine-dfedu", "tiny/mine-flt"]
    assert [each.name for each in board.entries] == names
    refused = board.entry("tiny/mine-flt")
    assert (refused.flaw.startswith("refused: "), refused.results) == (True, ())
    entry = board.entry("tiny/mine-dfedu")
    assert [each.seed for each in entry.results] == [0, 1]
    assert entry.tuned["training.alpha"] in (0.1, 0.3)
    page = (tmp_path / "out" / "board.html").read_text()
    assert entry.results[1].digest[:12] in page
    assert 'data-chart="board"' in page
    assert (tmp_path / "out" / "board.svg").read_text().startswith("<svg")

    assert "of 3: " not in command(*words, cwd=tmp_path).stderr  # nothing was made
    assert read_board(tmp_path / "out" / "board.json").entries == board.entries

    check = ["board", "--check", "tiny/mine-dfedu", "--out", "out"]
    assert "2 of 2 runs are equal to the bit" in command(*check, cwd=tmp_path).stdout
    fewer = replace(entry, toml=entry.toml.replace("rounds = 3", "rounds = 2"))
    Board({}, (fewer,)).save(tmp_path / "out" / "board.json")
    other = command(*check, cwd=tmp_path, code=1)
    assert "2 of 2 runs differ" in other.stderr
    assert "payload_bytes" in other.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[method]\n[algorithm]\nname = 'local'\n", "method.title"),
        ("[method]\ntitle = 'x'\ncolour = 'red'\n[algorithm]\nname = 'local'\n", "method.colour"),
        ("[method]\ntitle = 'x'\nsearch = {'training.alpha' = '1..0'}\n[algorithm]\nname = 'local'\n", "method.search"),
    ],
)
def test_a_wrong_method_is_refused(tmp_path, text, said):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        Method.of(tmp_path / "mine.toml")


def _entry(method, metrics, sent, metric="accuracy", curve=()):
    results = tuple(
        Result(seed, "", {"test_metric": each, "payload_bytes": sent}, curve) for seed, each in enumerate(metrics)
    )
    return Entry("p", "P", method, method.upper(), "f", "", metric=metric, results=results)


def test_figures_of_a_board():
    a, b, c = _entry("a", [0.5, 0.7], 1e6), _entry("b", [0.8, 0.9], 4e6), _entry("c", [0.7, 0.8], 8e6)
    assert best_of([a, b, c]) is b
    assert target_of([a, b, c]) == pytest.approx(0.9 * 0.85)
    assert front_of([c, b, a]) == [a, b]
    assert places_of([a, b, c, _entry("d", [0.7, 0.8], 1)]) == {"a": 4, "b": 1, "c": 2.5, "d": 2.5}
    assert b.better(c)
    assert not c.better(b)
    assert not _entry("e", [0.8, 0.9 + 1e-9], 1).better(_entry("f", [0.8 + 2e-9, 0.9], 1))
    mse = [_entry("a", [1.0, 3.0], 5, "mse"), _entry("b", [0.5, 0.7], 9, "mse")]
    assert (best_of(mse), target_of(mse), front_of(mse)) == (mse[1], pytest.approx(0.6 / 0.9), mse)
    curve = ((0.2, 10.0, 1.0), (0.6, 30.0, 2.5))
    assert [each and each.mean for each in _entry("a", [1, 1], 1, curve=curve).to_reach(0.5)] == [30.0, 2.5]
    assert _entry("a", [1, 1], 1, curve=curve).to_reach(0.7) == (None, None)
    rows = next(sections_of(Board({}, (a, b, c)))).rows
    assert rows[1] == ["B", "85.0 ± 5.0 *", "1.0"]


def test_a_curve_keeps_what_is_better_than_before():
    points = [(0.1, 1.0, 1.0), (0.61, 2.0, 2.0), (0.5, 3.0, 3.0), (0.612, 4.0, 4.0), (0.7, 5.0, 5.0), (0.8, 6.0, 6.0)]
    assert thinned(points, 1) == (points[1], *points[4:])
    errors = [(1.0, 1.0, 1.0), (0.5, 2.0, 2.0), (0.6, 3.0, 3.0), (0.4, 4.0, 4.0)]
    assert thinned(errors, -1) == (errors[1], errors[3])
    assert thinned([], 1) == ()


@pytest.mark.parametrize("text", ["", "[]", '{"format": 2}', '{"format": 1, "facts": {}, "entries": [{}]}', "\x00"])
def test_what_is_no_board_is_refused(tmp_path, text):
    (tmp_path / "board.json").write_text(text)
    with pytest.raises(UserError, match="no board"):
        read_board(tmp_path / "board.json")


def test_figures_that_are_not_finite_are_refused(tmp_path):
    Board({}, (_entry("a", [math.inf], 1),)).save(tmp_path / "board.json")
    with pytest.raises(UserError, match="not finite"):
        read_board(tmp_path / "board.json")
