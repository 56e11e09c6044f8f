"""Run folders of others: what readers and commands make of records and files that no run writes."""

import json
import os
import re
import shutil
import signal
import unicodedata
import uuid

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.numpy import save_file

from foreign import CONFIG, change, loosen, make_run, sheafgossip
from made import event, write
from sheafgossip.launcher.config.sections import ConfigError, validate
from sheafgossip.launcher.run.earlier import stage
from sheafgossip.metrics import open_run
from sheafgossip.metrics.config_file import read_config
from sheafgossip.metrics.events import remarks_on
from sheafgossip.metrics.reader import open_records
from sheafgossip.metrics.records import LAUNCHER, TABLES, EventRecord, NodeRecord
from sheafgossip.metrics.store import VIEWS, RunFolderError
from sheafgossip.metrics.summary import summarize
from sheafgossip.metrics.text import plain
from sheafgossip.metrics.watch.snapshot import Follower

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
KEPT = str.maketrans("", "", "\n\t")
TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63 - 1, -(2**63), 2**31, 10**6])
KINDS = st.sampled_from(["crash", "restart", "timeout", "drop", "hello", "server", "finish", "²", "x" * 5000])
ODD = st.none() | NUMBERS | st.floats(allow_nan=False) | st.text(max_size=20) | st.binary(max_size=8) | KINDS


@pytest.fixture
def folder(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture(scope="module")
def loose(tmp_path_factory):
    folder = make_run(tmp_path_factory.mktemp("loose") / "run")
    loosen(folder / "run.sqlite")
    return folder


def altered(folder, *scripts):
    with change(folder / "run.sqlite") as connection:
        connection.executescript(";".join(scripts))
    return folder


def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / uuid.uuid4().hex)


def test_views_are_ours_whatever_the_file_says(folder):
    before = summarize(folder)
    views = (f"CREATE VIEW {view} AS {ENDLESS} SELECT i AS round, i AS node, i AS part FROM n" for view in VIEWS)
    assert summarize(altered(folder, *views)) == before


often = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
NO_TABLE, NO_VALUE = "{} is no table as a run makes it", r"{}\.{} = .*: no run writes such a value"
REPLACED = [
    ("used", f"DROP TABLE used; CREATE VIEW used AS {ENDLESS} SELECT i AS node FROM n"),
    ("used", f"DROP TABLE used; CREATE TABLE used AS {ENDLESS} SELECT i AS node FROM n LIMIT 3"),
    ("round", "CREATE TABLE x AS SELECT * FROM round; DROP TABLE round; ALTER TABLE x RENAME TO round"),
    ("meta", "DROP TABLE meta; CREATE VIEW meta AS SELECT 1 AS key, 2 AS value"),
]
UPDATED = [
    *(("round", "wall_s", "'soon'"), ("round", "test_metric", "'high'"), ("round", "node", "NULL")),
    *(("round", "virtual_s", "9e999"), ("round", "wall_s", "NULL"), ("node", "pid", 2**40)),
    *(("overhead", "src", 10**12), ("traffic", "payload_bytes", "x'00'"), ("event", "detail", 3)),
]


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        *((script, NO_TABLE.format(table)) for table, script in REPLACED),
        *((f"UPDATE {t} SET {c} = {value} WHERE rowid = 1", NO_VALUE.format(t, c)) for t, c, value in UPDATED),
        ("UPDATE meta SET value = '<script>' WHERE key = 'metric'", "metric = '<script>'; allowed: accuracy, mse"),
    ],
)
def test_a_table_or_a_value_that_no_run_makes_is_named(loose, tmp_path, script, complaint):
    folder = altered(copy(loose, tmp_path), script)
    with pytest.raises(RunFolderError, match=complaint):
        summarize(folder)


def test_reading_without_end_is_ended_and_a_signal_is_no_fault_of_the_file(folder):
    def read(alarm_s: float) -> None:
        with open_records(folder) as records:
            if alarm_s:
                signal.setitimer(signal.ITIMER_REAL, alarm_s)
            records.execute(f"{ENDLESS} SELECT max(i) FROM n").fetchone()

    with pytest.raises(RunFolderError, match="takes without end"):
        read(0.0)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            read(0.01)
    finally:
        signal.signal(signal.SIGALRM, previous)


@often
@given(data=st.data())
def test_odd_values_in_any_column_are_read_or_refused_in_one_line(loose, tmp_path, data):
    folder = copy(loose, tmp_path)
    with change(folder / "run.sqlite") as connection:
        for _ in range(data.draw(st.integers(1, 3))):
            table = data.draw(st.sampled_from(sorted(TABLES)))
            column = data.draw(st.sampled_from(TABLES[table]._fields))
            row = data.draw(st.integers(1, 4))
            connection.execute(f"UPDATE OR IGNORE {table} SET {column} = ? WHERE rowid = ?", [data.draw(ODD), row])
    assert_read_or_refused(folder)


@often
@given(damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=20))
def test_a_damaged_database_is_read_or_refused_in_one_line(folder, tmp_path, damage):
    broken = copy(folder, tmp_path)
    content = bytearray((broken / "run.sqlite").read_bytes())
    for place, byte in damage:
        content[int(place**3 * len(content))] = byte
    (broken / "run.sqlite").write_bytes(content)
    assert_read_or_refused(broken)


@pytest.mark.filterwarnings("error")
def test_infinite_figures_are_no_figures_in_json(loose, tmp_path):
    folder = altered(copy(loose, tmp_path), "UPDATE round SET test_metric = 9e999")
    assert summarize(folder).as_dict()["final"]["mean"] is None


@pytest.mark.parametrize("name", [*(f"run.sqlite{end}" for end in ("", "-wal", "-shm", "-journal")), "config.toml"])
@pytest.mark.parametrize("what", ["pipe", "link"])
def test_a_pipe_or_a_link_in_place_of_a_file_is_refused(folder, tmp_path, name, what):
    (tmp_path / "document").write_text("mine")
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name) if what == "pipe" else (folder / name).symlink_to(tmp_path / "document")
    with pytest.raises(RunFolderError, match=r"no plain file|has no run\.sqlite|not a plain file|is a symbolic link"):
        summarize(folder)
    assert (tmp_path / "document").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("model = 3", "model = 3: must be a table"),
        ("[seed]\nx = 1", "seed = .*: must be a whole number"),
        ("seed = true", "seed = True: must be a whole number"),
        ("clients = -1", "clients = -1: must not be negative"),
        ("[measuring]\nenabled = 1", "measuring.enabled = 1: must be true or false"),
        ("algorithm = [1]", r"algorithm = \[1\]: must be a table"),
        ("[[algorithm]]\nx = 1", "algorithm.* must be text"),
        ("seed = 0x" + "f" * 9000, "a number is too large"),
        ("seed = " + "9" * 9000, "config.toml: "),
        ("a" + ".a" * 100_000 + " = 1", "a key of more than"),
        ("a" * 3_000_000, "config.toml: "),
        ("name = '\udcff'", r"is not UTF-8 text \(byte 8\)"),
    ],
)
def test_an_odd_config_is_refused_in_one_line(folder, text, complaint):
    (folder / "config.toml").write_text(text, errors="surrogateescape")
    for read in (read_config, summarize, Follower):
        with pytest.raises(RunFolderError, match=complaint) as refusal:
            read(folder)
        assert re.fullmatch(".{,299}", str(refusal.value))


def test_long_and_odd_texts_are_one_short_line_and_compared_at_once(folder):
    (folder / "config.toml").write_text('name = "a\\u001b[31mb\\n\\u202ec"\n')
    write(folder, EventRecord(1.0, None, LAUNCHER, "warning", "e" * 1_000_000))
    assert len(remarks_on(folder)) == 2
    assert len(Follower(folder).look().events[-1].detail) == 500
    write(folder, EventRecord(1.0, None, LAUNCHER, "a\n\x1b" + "b" * 1000, ""))
    assert Follower(folder).look().events[-1].kind == "a ?" + "b" * 197
    assert summarize(folder).name == "a?[31mb ?c"


def test_what_an_older_run_lacks_is_missing_in_its_frame(folder):
    run = open_run(altered(folder, "ALTER TABLE round DROP COLUMN idle_s", "DROP TABLE used"))
    assert run.rounds.idle_s.isna().all()
    with pytest.raises(RunFolderError, match="no such table: used"):
        _ = run.used


@given(st.text(st.characters(exclude_categories=[])))
def test_plain_text_holds_no_control_character_and_loses_nothing_else(text):
    shown = plain(text)
    assert len(shown) == len(text)
    assert not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in shown.translate(KEPT))
    assert not {unicodedata.bidirectional(character) for character in shown} & TURNING
    assert plain(shown) == shown
    shown.encode()


def assert_read_or_refused(folder):
    for read in (lambda: summarize(folder, 0.1), lambda: Follower(folder).look(seconds=1), lambda: remarks_on(folder)):
        try:
            read()
        except RunFolderError as error:
            assert "\n" not in str(error)  # noqa: PT017


# -- commands that look at them ----------------------------------------------------------------------------------------

EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)> $\\\\frac$ $"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\u202egpj\x9b31m"
COMMANDS = ["summary", "summary --json", "compare", "report", "export --to json", "watch", "theory"]


def test_nothing_in_a_folder_becomes_markup_of_the_report(tmp_path):
    evil = CONFIG.replace("a run", EVIL.replace('"', '\\"')) + f"label = '''{EVIL}'''\n[data]\ndataset = '''{EVIL}'''\n"
    folder = make_run(tmp_path / "<script>x", evil)
    events = (EventRecord(1.0, None, node, EVIL, EVIL) for node in (0, -1, 7))
    nodes = (NodeRecord(-3 + at, EVIL, EVIL, 0, 0, 0, 0, EVIL, 1, EVIL) for at in (0, 1))
    write(folder, *events, *nodes, groups=f"{EVIL},1", owners=json.dumps([EVIL]))
    code, _, err = sheafgossip("report", folder, "--out", tmp_path / "page.html")
    assert (code, err) == (0, "")
    page, charts, scripts = (tmp_path / "page.html").read_text().rpartition('<script type="application/octet-stream"')
    assert charts
    assert re.match(r' id="charts">[A-Za-z0-9+/=]+</script>\n<script>', scripts)
    assert not re.search(r"<(script|img)\b|<[^>]*\son\w+\s*=", page)
    assert re.search(r"default-src 'none'; script-src 'sha256-[A-Za-z0-9+/=]+'; style-src", page.replace("&#39;", "'"))
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize("name", ["a [/b] c", "[bold]:smile:", "$\\\\frac$ x", "_x", "x" * 100_000])
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
    for command in COMMANDS:
        for path in (renamed, bare) if command != "report" else (bare,):
            _, out, err = sheafgossip(*command.split(), path)
            assert not set(out + err) & set("\x1b\x07\r\u202e\x9b"), command


def test_a_name_that_is_no_unicode_clients_of_any_number_and_edges_to_nobody_are_shown(folder, tmp_path):
    edges = "UPDATE OR IGNORE overhead SET src = 5, dst = 5 WHERE kind = 'hello'"
    odd = make_run(tmp_path / os.fsdecode(b"caf\xe9"), "")
    altered(odd, "UPDATE node SET node = 999999 WHERE node = 1", edges)
    for words in (["summary"], ["compare", folder], ["report"]):
        code, _, err = sheafgossip(*words, odd)
        assert (code, err) == (0, ""), words


def assert_one_line(*words, said=""):
    code, out, err = sheafgossip(*words)
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"error: [^\n]*{said}[^\n]*\n", err)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_no_run_writes_is_one_line_in_every_command(loose, tmp_path, command):
    words = command.split()
    for name in ("run.sqlite", "run.sqlite-wal", "config.toml"):
        folder = make_run(tmp_path / name)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        assert_one_line(*words, folder)
    odd = make_run(tmp_path / "odd", "seed = '<script>alert(1)</script>'")
    assert_one_line(*words, odd, said=r"config\.toml")
    wrong = "UPDATE round SET wall_s = 'soon', objective = x'00', node = node + 10000000"
    assert_one_line(*words, altered(copy(loose, tmp_path), wrong))


def test_a_page_is_not_written_through_a_link(folder, tmp_path):
    (tmp_path / "document").write_text("mine")
    (folder / "report.html").symlink_to(tmp_path / "document")
    assert_one_line("report", folder)
    assert (tmp_path / "document").read_text() == "mine"


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
    altered(folder, "UPDATE round SET objective = 1.0, gradient_norm = 1.0")
    shard = folder / "shards" / "node-0000.safetensors"
    shard.parent.mkdir()
    spoil(shard, damage)
    assert_one_line("theory", folder, said=r"node-0000\.safetensors: cannot be read as the shard of a client: ")


def test_a_folder_of_runs_with_one_that_is_broken_names_it(folder, tmp_path):
    for name in ("good", "bad"):
        shutil.copytree(folder, tmp_path / "runs" / name)
    (tmp_path / "runs" / "bad" / "run.sqlite").write_text("no database")
    assert_one_line("summary", tmp_path / "runs", said="bad")


@pytest.mark.parametrize("damage", ["pipe", "bytes"])
def test_a_configuration_that_cannot_be_read_is_one_line_where_a_run_is_taken_up(folder, damage):
    altered(folder, "DELETE FROM event WHERE kind = 'finish'")
    (folder / "config.toml").unlink()
    os.mkfifo(folder / "config.toml") if damage == "pipe" else (folder / "config.toml").write_bytes(b"name = '\xff'")
    assert_one_line("resume", folder, said=r"config\.toml")
    with pytest.raises(ConfigError, match="holds something else than a run"):
        stage(validate({}), folder)


@pytest.mark.parametrize(("damage", "number"), [("pipe", "0000"), ("text", "0000"), ("name", "x")])
def test_a_state_that_cannot_be_read_is_refused(folder, damage, number):
    place = folder / "state" / "round-000001"
    place.mkdir(parents=True)
    spoil(place / f"node-{number}.safetensors", damage)
    with pytest.raises(RunFolderError, match="cannot be read as the state of a client"):
        open_run(folder).theta(1)
