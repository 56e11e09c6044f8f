"""MATLAB's files, held against SciPy's own reader."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from scipy.io import loadmat, savemat

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data.files import Source
from sheafgossip.launcher.data.matlab import _inputs_and_outcomes
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


def saved(columns, compressed=True, **more) -> bytes:
    cells = np.empty((1, len(columns)), object)
    cells[0, :] = columns
    made = io.BytesIO()
    savemat(made, {"about": "text", "X": cells, "n": 3.5, "Y": cells.T} | more, do_compression=compressed)
    return made.getvalue()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", ["f8", "f4", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?"])
def test_cells_are_those_that_scipy_reads(tmp_path, dtype, compressed):
    rng = np.random.default_rng(0)
    columns = [(100 * rng.random(shape)).astype(dtype) for shape in ((1, 1), (2, 3), (7, 2), (5, 1), (0, 4))]
    (tmp_path / "a.mat").write_bytes(saved(columns, compressed))
    expected = loadmat(tmp_path / "a.mat")
    for name, found in zip("XY", _inputs_and_outcomes(Source(tmp_path / "a.mat")), strict=True):
        there = list(expected[name].flat)
        assert [each.tolist() for each in found] == [each.tolist() for each in there]
        assert [each.shape for each in found] == [each.shape for each in there]


@pytest.mark.parametrize("cell", [np.eye(2) * 1j, {"a": 1}, "text", np.array(["a"], object)])
def test_cells_that_hold_no_real_numbers_are_named(tmp_path, cell):
    (tmp_path / "a.mat").write_bytes(saved([np.eye(2), cell]))
    with pytest.raises(DataError, match=r"X\{2\} is not an array of whole or real numbers"):
        load(DataSection(dataset="school", root=tmp_path / "a.mat"), 0)


def test_what_is_packed_is_unpacked_only_as_far_as_it_is_announced_and_fits(tmp_path, monkeypatch):
    path, header = tmp_path / "school.mat", saved([np.eye(2)])[:128]
    for announced, packed in ((100, bytes(50_000_000)), (2**32 - 8, b""), (1000, b"few")):
        content = zlib.compress(struct.pack("<II", 14, announced) + packed)
        path.write_bytes(header + struct.pack("<II", 15, len(content)) + content)
        with pytest.raises(
            DataError, match=r"this is not a MATLAB file, or it is damaged|more than the memory that is"
        ):
            load(DataSection(dataset="school", root=path), 0)


WHOLE = {packed: saved([np.ones((3, 2)), np.zeros((2, 2))], packed) for packed in (False, True)}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    packed=st.booleans(), damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4)
)
def test_a_damaged_file_is_read_or_refused_in_a_line(tmp_path: Path, packed, damage):
    content = bytearray(WHOLE[packed])
    for place, byte in damage:
        content[int(place * len(content))] = byte
    (tmp_path / "school.mat").write_bytes(content)
    try:
        load(DataSection(dataset="school", root=tmp_path), 0)
    except DataError as refusal:
        assert "\n" not in str(refusal)  # noqa: PT017


def test_the_real_file_has_139_schools_and_15362_students():
    if not (SHARED / "school").is_dir():
        pytest.skip(f"no School file in {SHARED / 'school'}")
    pool = load(DataSection(dataset="school", root=SHARED / "school"), 0)
    sizes = np.bincount(pool.client)
    assert (len(sizes), sizes.min(), sizes.max()) == (139, 22, 251)  # as the literature says
    assert (pool.x.shape, pool.y.min(), pool.y.max()) == ((15_362, 28), 1, 70)
    assert np.all(pool.x[:, 27] == pool.x[0, 27])
