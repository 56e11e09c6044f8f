"""Commands that look at the run folders of others."""

import os
import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from foreign import CONFIG, change, loosen, make_run, sheafgossip
from made import event, write
from sheafgossip.launcher.config.sections import ConfigError, validate
from sheafgossip.launcher.run.earlier import stage
from sheafgossip.metrics import open_run
from sheafgossip.metrics.records import LAUNCHER, EventRecord, NodeRecord
from sheafgossip.metrics.store import RunFolderError

EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)> $\\\\frac$ $"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\u202egpj\x9b31m"
COMMANDS = "summary", "summary --json", "compare", "report", "export --to json", "watch", "theory"
READERS = list(map(str.split, COMMANDS))


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "run")


def test_nothing_in_a_folder_becomes_markup_of_the_report(tmp_path):
    evil = CONFIG.replace("a run", EVIL.replace('"', '\\"')) + f"label = '''{EVIL}'''\n[data]\ndataset = '''{EVIL}'''\n"
    folder = make_run(tmp_path / "<script>x", evil)
    events = (EventRecord(1.0, None, node, EVIL, EVIL) for node in (0, -1, 7))
    nodes = (NodeRecord(-3 + at, EVIL, EVIL, 0, 0, 0, 0, EVIL, 1, EVIL) for at in (0, 1))
    write(folder, *events, *nodes, groups=f"{EVIL},1")
    code, _, err = sheafgossip("report", folder, "--out", tmp_path / "page.html")
    assert (code, err) == (0, "")
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r"<(script|img)\b|<[^>]*\son\w+\s*=", page)
    assert "default-src 'none'" in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("name", ["a [/b] c", "[bold]x", ":smile:", "$\\\\frac$ x", "_x", "x" * 100_000])
def test_a_name_is_text_and_nothing_else(folder, name):
    (folder / "config.toml").write_text(CONFIG.replace("a run", name))
    other = make_run(folder.parent / "other")
    for words in (["summary", folder], ["summary", folder, other], ["compare", folder, other]):
        code, out, err = sheafgossip(*words)
        assert (code, err) == (0, "")
        assert len(name) > 20 or name.replace("\\\\", "\\") in out


def test_no_control_character_of_a_folder_reaches_the_terminal(folder, tmp_path):
    text = "".join(f"\\u{ord(character):04x}" for character in ESCAPES)
    (folder / "config.toml").write_text(CONFIG.replace("a run", text).replace("sheaf-fmtl", text))
    write(folder, event(LAUNCHER, "failure", 9.0, ESCAPES), event(0, "warning", 1.0, ESCAPES))
    renamed = folder.rename(tmp_path / ESCAPES)
    bare = make_run(tmp_path / f"bare{ESCAPES}", "")
    for words in READERS:
        for path in (renamed, bare) if words != ["report"] else (bare,):
            _, out, err = sheafgossip(*words, path)
            assert not set(out + err) & set("\x1b\x07\r\u202e\x9b"), words


def test_a_name_that_is_no_unicode_is_shown(tmp_path):
    folder = make_run(tmp_path / os.fsdecode(b"caf\xe9"), "")
    other = make_run(tmp_path / "other", "")
    for words in (["summary"], ["compare", other], ["report"]):
        code, _, err = sheafgossip(*words, folder)
        assert (code, err) == (0, ""), words


def assert_one_line(*words, said=""):
    code, out, err = sheafgossip(*words)
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"error: [^\n]*{said}[^\n]*\n", err)


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_what_no_run_writes_is_one_line_in_every_command(tmp_path, words):
    for number, name in enumerate(("run.sqlite", "run.sqlite-wal", "config.toml")):
        folder = make_run(tmp_path / f"{number}")
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        assert_one_line(*words, folder)
    odd = make_run(tmp_path / "odd", "seed = '<script>alert(1)</script>'")
    assert_one_line(*words, odd, said=r"config\.toml")
    folder = make_run(tmp_path / "records")
    loosen(folder / "run.sqlite")
    with change(folder / "run.sqlite") as connection:
        connection.execute("UPDATE round SET wall_s = 'soon', objective = x'00', node = node + 10000000")
    assert_one_line(*words, folder)


def test_a_page_is_not_written_through_a_link(folder, tmp_path):
    (tmp_path / "document").write_text("mine")
    (folder / "report.html").symlink_to(tmp_path / "document")
    assert_one_line("report", folder)
    assert (tmp_path / "document").read_text() == "mine"


def test_clients_of_any_number_and_edges_to_nobody_are_drawn(folder):
    with change(folder / "run.sqlite") as connection:
        connection.execute("UPDATE node SET node = 999999 WHERE node = 1")
        connection.execute("UPDATE OR IGNORE overhead SET src = 5, dst = 5 WHERE kind = 'hello'")
    assert sheafgossip("report", folder)[0] == 0


def spoil(file, damage):
    if damage == "pipe":
        os.mkfifo(file)
    elif damage == "text":
        file.write_text("no arrays")
    elif damage != "missing":
        arrays = {"shape": np.zeros((0, 3)), "infinite": np.full((3, 3), np.inf), "name": np.zeros(3)}
        save_file({"theta" if damage == "name" else "x_train": arrays[damage].astype(np.float32)}, file)


@pytest.mark.parametrize("damage", ["missing", "pipe", "text", "shape", "infinite"])
def test_a_shard_that_cannot_be_read_is_one_line(folder, damage):
    (folder / "config.toml").write_text('clients = 2\nrounds = 2\n[algorithm]\nname = "dfedu"\n')
    with change(folder / "run.sqlite") as connection:
        connection.execute("UPDATE round SET objective = 1.0, gradient_norm = 1.0")
    shard = folder / "shards" / "node-0000.safetensors"
    shard.parent.mkdir()
    spoil(shard, damage)
    assert_one_line("theory", folder, said=r"node-0000\.safetensors: cannot be read as the shard of a client: ")


def test_a_folder_of_runs_with_one_that_is_broken_names_it(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "runs" / "good")
    shutil.copytree(folder, tmp_path / "runs" / "bad")
    (tmp_path / "runs" / "bad" / "run.sqlite").write_text("no database")
    assert_one_line("summary", tmp_path / "runs", said="bad")


@pytest.mark.parametrize("damage", ["pipe", "bytes"])
def test_a_configuration_that_cannot_be_read_is_one_line_where_a_run_is_taken_up(folder, damage):
    with change(folder / "run.sqlite") as connection:
        connection.execute("DELETE FROM event WHERE kind = 'finish'")
    (folder / "config.toml").unlink()
    os.mkfifo(folder / "config.toml") if damage == "pipe" else (folder / "config.toml").write_bytes(b"name = '\xff'")
    assert_one_line("resume", folder, said=r"config\.toml")
    with pytest.raises(ConfigError, match="holds something else than a run"):
        stage(validate({}), folder)


@pytest.mark.parametrize("damage", ["pipe", "text", "name"])
def test_a_state_that_cannot_be_read_is_refused(folder, damage):
    place = folder / "state" / "round-000001"
    place.mkdir(parents=True)
    spoil(place / f"node-{'x' if damage == 'name' else '0000'}.safetensors", damage)
    with pytest.raises(RunFolderError, match="cannot be read as the state of a client"):
        open_run(folder).theta(1)


def test_an_encoder_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "config.toml").write_text(
        'clients = 2\n[algorithm]\nname = "flt"\nencoder = "pipe"\n[compute]\nstep_s = 0.1\n'
    )
    assert_one_line("plan", tmp_path / "config.toml", said="is no plain file")
