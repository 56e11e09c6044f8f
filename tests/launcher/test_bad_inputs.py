"""What people write wrong, in commands and in files: each is one line that says what is wrong, ends with 2, and leaves
nothing behind."""

import gzip
import io
import shlex
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given, settings, strategies as st
from scipy.io import savemat

import bad_inputs
from foreign import sheafgossip
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError, RunConfig, keys_of, validate
from sheafgossip.launcher.data.images import read_idx
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load as load_data
from sheafgossip.launcher.prepare.assignments import Host
from sheafgossip.launcher.processes.engine import Engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With every file that the list speaks of, and a folder for what a run may write."""
    folder = tmp_path_factory.mktemp("inputs")
    bad_inputs.write(folder)
    return folder


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_size if path.is_file() else -1 for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def written(folder):
    return files(folder)


class NoProcesses(Engine):
    """All that is asked of an engine before a run starts."""

    def __init__(self, sockets: Path):
        self.sockets = sockets

    def hosts(self):
        return (Host("this-host", cores=2),)

    def time_a_step(self, assignment, steps):
        return 0.001

    def __exit__(self, *reason):
        (self.sockets / "0").rmdir() if (self.sockets / "0").exists() else None


NoProcesses.__abstractmethods__ = frozenset()  # a process is never asked for


@pytest.fixture
def no_processes(monkeypatch, tmp_path, folder):
    monkeypatch.chdir(folder)
    for module in ("studies.runner", "commands.runs"):
        monkeypatch.setattr(f"sheafgossip.launcher.{module}.open_engine", lambda *_: NoProcesses(tmp_path))
    for begun in ("studies.runner.Run", "studies.sweep.Jobs.make"):
        monkeypatch.setattr(f"sheafgossip.launcher.{begun}", lambda *_, **__: pytest.fail("a run was begun"))


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize(("line", "said"), list(bad_inputs.cases()), ids=lambda text: text)
def test_a_bad_input_is_one_line_and_2_and_leaves_nothing_behind(folder, written, line, said):
    code, out, err = sheafgossip(*shlex.split(line))
    assert (code, out) == (2, "")
    assert err.replace(str(folder), "@").startswith(f"error: {said}")
    assert err.count("\n") == 1
    assert files(folder) == written


# -- odd contents of files, which the list cannot hold -----------------------------------------------------------------


def data_of(path: Path, dataset: str):
    return load_data(validate({"data": {"dataset": dataset, "root": str(path)}}).data, 0, 2)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*keys_of(RunConfig), "compare", "base"])
TABLES = st.dictionaries(st.sampled_from(("name", "path", "root", "kind", "edges", "mix", "label")), VALUES)


@settings(max_examples=200)
@given(st.dictionaries(KEYS | st.text(max_size=8), VALUES | TABLES, max_size=4))
def test_any_tree_is_a_configuration_or_refused(tree):
    with suppress(ConfigError):
        validate(tree)


@settings(max_examples=100)
@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_a_configuration_or_refused(tmp_path, content):
    (tmp_path / "config.toml").write_bytes(content)
    with suppress(ConfigError):
        load(tmp_path / "config.toml")


def npz_of(shape: str, path: Path, claimed: int | None = None) -> Path:
    """A file whose header announces a shape, and which holds a few bytes."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"\x00" * 64
    with zipfile.ZipFile(path, "w") as file:
        for name in ("x", "y"):
            file.writestr(f"{name}.npy", array)
    if claimed:
        path.write_bytes(path.read_bytes().replace(len(array).to_bytes(4, "little"), claimed.to_bytes(4, "little")))
    return path


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(1000000, 1000000)", "(9,)", "(-1, 2)", "(10**400,)", "()"])
def test_an_npz_file_that_announces_more_than_it_holds_is_refused(tmp_path, shape):
    with pytest.raises(DataError, match=r"x is damaged or holds Python objects|x is a single value"):
        data_of(npz_of(shape, tmp_path / "x.npz"), "npz")
    with pytest.raises(DataError, match=r"x is damaged|more than the memory that is free|not an \.npz file"):
        data_of(npz_of("(500000000,)", tmp_path / "x.npz", claimed=0xFFFFFFFE), "npz")


@settings(max_examples=80)
@given(
    name=st.sampled_from(["x.npz", "x.csv", "x.csv.gz", "x.parquet"]),
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
    length=st.floats(0, 1),
)
def test_a_damaged_table_is_read_or_refused(tmp_path, name, damage, length):
    frame = pandas.DataFrame({"a": np.arange(20.0), "target": np.arange(20) % 2, "client": np.arange(20) % 4})
    made, text = io.BytesIO(), frame.to_csv(index=False).encode()
    if name == "x.npz":
        np.savez_compressed(made, **{column: frame[column].to_numpy() for column in frame})
    elif name == "x.parquet":
        frame.to_parquet(made)
    else:
        made.write(gzip.compress(text, mtime=0) if name == "x.csv.gz" else text)
    content = bytearray(made.getvalue())
    for place, byte in damage:
        content[int(place * len(content))] = byte
    (tmp_path / name).write_bytes(content[: int(length * len(content))] if length < 0.5 else content)
    try:
        data_of(tmp_path / name, "table")
    except DataError as refusal:
        assert "\n" not in str(refusal)  # noqa: PT017


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 0.99])
def test_a_matlab_file_that_is_cut_off_is_refused(tmp_path, share, compressed):
    made, cells = io.BytesIO(), np.empty((1, 2), object)
    cells[0, 0] = cells[0, 1] = np.ones((3, 2))
    savemat(made, {"X": cells, "Y": cells}, do_compression=compressed)
    content = made.getvalue()
    (tmp_path / "school.mat").write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"school\.mat"):
        data_of(tmp_path / "school.mat", "school")


IDX = gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 4, 1, 2, 3, 4]), mtime=0)  # the same in all processes that test
ENDLESS = gzip.compress(b"\x00" * (4 << 20), mtime=0)


@pytest.mark.parametrize("content", [b"", IDX[:5], IDX[:20], IDX[:-1] + b"\x01", ENDLESS])
def test_a_gzip_file_that_is_damaged_or_unpacks_without_end_is_refused(tmp_path, monkeypatch, content):
    monkeypatch.setattr("sheafgossip.launcher.data.images._LARGEST", 1 << 20)
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"x\.gz (can't be read|is not an IDX file|holds more than .* is read)"):
        read_idx(tmp_path / "x.gz", 1)
