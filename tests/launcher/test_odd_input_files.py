"""Files that a configuration is, or names, and that are not what they should be: one line each, and at once."""

import gzip
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foreign import sheafgossip
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError, validate
from sheafgossip.launcher.data import DataError
from sheafgossip.launcher.data import load as load_data
from sheafgossip.launcher.data.images import read_idx

COMMANDS = (["run"], ["plan"], ["config", "show"], ["topology", "show"], ["sweep"])
SECTIONS = ("topology", "data", "model", "training", "algorithm", "transport", "time", "links", "faults", "compare",
            "base", "name", "seed", "clients", "reproduction")  # fmt: skip


@pytest.fixture
def config(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "config.toml"
        path.write_text(text)
        return path

    return write


def assert_one_line(words, complaint, *, lines=1):
    code, out, err = sheafgossip(*words)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == lines
    assert err.startswith("error: ")
    assert complaint in err


@pytest.mark.parametrize("words", COMMANDS)
def test_a_configuration_that_is_a_pipe_is_refused(tmp_path, words):
    os.mkfifo(tmp_path / "config.toml")
    assert_one_line([*words, tmp_path / "config.toml"], "config.toml: cannot be read: is not a plain file")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"a" + b".a" * 100_000 + b" = 1", "a key of more than"),
        (b"seed = " + b"9" * 5000, "not valid TOML"),
        (b"[seed]", "seed = {}: "),
        (b"[[data]]", "data = [{}]: must be a table"),
        (b'base = "a\\u0000b"', "base = 'a\\x00b'"),
        (b'base = "pipe"', "pipe: cannot be read: is not a plain file"),
        (b"[base]", "base = {}: must be the name"),
        (b'[data]\nroot = "a\\u0000b"', "data.root = "),
        (b'[data]\nroot = "~nobody-of-this-name/x"', "data.root = "),
        (b"[[compare]]\nalgorithm = 3\n[algorithm]\nname = 'local'", "algorithm"),
        (b"[algorithm]\nname = []", "algorithm.name = []"),
    ],
)
def test_an_odd_configuration_is_refused_in_one_line(tmp_path, content, complaint):
    (tmp_path / "config.toml").write_bytes(content)
    os.mkfifo(tmp_path / "pipe")
    assert_one_line(["config", "show", tmp_path / "config.toml"], complaint)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(SECTIONS) | st.text(max_size=8),
        VALUES | st.dictionaries(st.sampled_from(("name", "path", "root", "kind", "edges", "mix", "label")), VALUES),
        max_size=4,
    )
)
def test_any_tree_is_a_configuration_or_refused(tree):
    try:
        validate(tree)
    except ConfigError as refusal:
        assert str(refusal)  # noqa: PT017


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_a_configuration_or_refused(tmp_path, content):
    (tmp_path / "config.toml").write_bytes(content)
    try:
        load(tmp_path / "config.toml")
    except ConfigError as refusal:
        assert str(refusal)  # noqa: PT017


@pytest.mark.parametrize("name", ["x.npz", "x.csv", "x.parquet", "x.mat"])
def test_data_that_is_a_pipe_is_refused(tmp_path, config, name):
    os.mkfifo(tmp_path / name)
    dataset = {"npz": "npz", "mat": "school"}.get(name.partition(".")[2], "table")
    path = config(f'clients = 2\n[data]\ndataset = "{dataset}"\nroot = "{name}"\n[time]\nclock = "virtual"')
    assert_one_line(["plan", path], "there is no such file")


@pytest.mark.parametrize("kind", ["graphml", "txt"])
def test_a_graph_that_is_a_pipe_is_refused(tmp_path, config, kind):
    os.mkfifo(tmp_path / f"g.{kind}")
    path = config(f'clients = 2\n[topology]\nkind = "file"\npath = "g.{kind}"')
    for words in (["topology", "show"], ["run", "--out", tmp_path / "run"]):
        assert_one_line([*words, path], "is no plain file")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "content", [None, b"client,round,factor\n0,1,\xff\n", b'client,round,factor\n0,1,"' + b"1" * 200_000]
)
def test_a_trace_that_cannot_be_read_is_refused(tmp_path, config, content):
    path = config('clients = 2\nrounds = 2\n[compute]\nstep_s = 0.1\n[stragglers]\nkind = "trace"\npath = "t.csv"')
    if content is None:
        os.mkfifo(tmp_path / "t.csv")
    else:
        (tmp_path / "t.csv").write_bytes(content)
    assert_one_line(["plan", path], "t.csv: ")


def npz_of(shape: str, path: Path, claimed: int | None = None) -> None:
    """A file whose header announces a shape, and which holds a few bytes."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (117 - len(header)) + "\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"\x00" * 64
    with zipfile.ZipFile(path, "w") as file:
        for name in ("x", "y"):
            file.writestr(f"{name}.npy", array)
    if claimed is not None:
        content = path.read_bytes()
        path.write_bytes(content.replace(len(array).to_bytes(4, "little"), claimed.to_bytes(4, "little")))


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(1000000, 1000000)", "(9,)", "(-1, 2)", "(10**400,)", "()"])
def test_an_npz_file_that_announces_more_than_it_holds_is_refused(tmp_path, shape):
    npz_of(shape, tmp_path / "x.npz")
    with pytest.raises(DataError, match=r"x is damaged or holds Python objects|x is a single value"):
        load_npz(tmp_path / "x.npz")


def test_an_npz_file_that_lies_about_its_size_takes_no_memory(tmp_path):
    npz_of("(500000000,)", tmp_path / "x.npz", claimed=0xFFFFFFFE)
    with pytest.raises(DataError, match=r"x is damaged|more than the memory that is free|not an \.npz file"):
        load_npz(tmp_path / "x.npz")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["x.npz", "x.csv", "x.csv.gz", "x.parquet"]),
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
    length=st.floats(0, 1),
)
def test_a_damaged_table_is_read_or_refused(tmp_path, name, damage, length):
    import pandas

    frame = pandas.DataFrame({"a": np.arange(20.0), "target": np.arange(20) % 2, "client": np.arange(20) % 4})
    made = io.BytesIO()
    match name:
        case "x.npz":
            np.savez_compressed(made, **{column: frame[column].to_numpy() for column in frame})
        case "x.parquet":
            frame.to_parquet(made)
        case "x.csv":
            made.write(frame.to_csv(index=False).encode())
        case "x.csv.gz":
            made.write(gzip.compress(frame.to_csv(index=False).encode()))
    content = bytearray(made.getvalue())
    for place, byte in damage:
        content[int(place * len(content))] = byte
    (tmp_path / name).write_bytes(content[: int(length * len(content))] if length < 0.5 else content)
    try:
        load_data(validate({"data": {"dataset": "table", "root": str(tmp_path / name)}}).data, 0, 2)
    except DataError as refusal:
        assert len(str(refusal).split("\n")) == 1  # noqa: PT017


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.99])
def test_a_matlab_file_that_is_cut_off_is_refused(tmp_path, share, compressed):
    from scipy.io import savemat

    made, cells = io.BytesIO(), np.empty((1, 2), object)
    cells[0, 0] = cells[0, 1] = np.ones((3, 2))
    savemat(made, {"X": cells, "Y": cells}, do_compression=compressed)
    content = made.getvalue()
    (tmp_path / "school.mat").write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"school\.mat"):
        load_data(validate({"data": {"dataset": "school", "root": str(tmp_path / "school.mat")}}).data, 0, 2)


@pytest.mark.parametrize("cut", [0, 5, 20, -1])
def test_a_damaged_gzip_file_is_refused(tmp_path, cut):
    whole = gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3, 4]))
    (tmp_path / "x.gz").write_bytes(whole[:cut] + b"\x01" * (cut < 0))
    with pytest.raises(DataError, match=r"x\.gz can't be read|x\.gz is not an IDX file"):
        read_idx(tmp_path / "x.gz", 1)


def test_a_gzip_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("sheafgossip.launcher.data.images._LARGEST", 1 << 20)
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"\x00" * (4 << 20)))
    with pytest.raises(DataError, match="the most that is read"):
        read_idx(tmp_path / "x.gz", 1)


def load_npz(path: Path):
    return load_data(validate({"data": {"dataset": "npz", "root": str(path)}}).data, 0, 2)
