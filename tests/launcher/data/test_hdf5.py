"""METR-LA and PEMS-BAY in their HDF5 form: pandas.DataFrame.to_hdf(key="df") and (key="speed"), as
github.com/liyaguang/DCRNN publishes and reads them (pandas.read_hdf)."""

import sys

import numpy as np
import pandas as pd
import pytest

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load

h5py = pytest.importorskip("h5py")
SPEEDS = np.random.default_rng(0).uniform(0, 70, (9, 3))
METR_LA = (["773869", "767541", "767542"], "df")
PEMS_BAY = ([400001, 400017, 400030], "speed")


def frame(columns):
    return pd.DataFrame(SPEEDS, columns=columns, index=pd.date_range("2012-03-01", periods=len(SPEEDS), freq="5min"))


def write(path, key="df", items=METR_LA[0], values=SPEEDS, **more):
    """The arrays of a frame, without the attributes that tell pandas their types."""
    with h5py.File(path, "w") as file:
        group = file.create_group(key)
        group["axis0"] = group["block0_items"] = np.array(items, "S6")
        group["axis1"] = np.arange(len(values)) * 300 * 10**9  # nanoseconds
        if values is not None:
            group["block0_values"] = values
        for name, array in more.items():
            group[name] = array


def read(path, **keys):
    return load(DataSection(dataset="sensors", root=path, window=2, **keys), 0)


@pytest.mark.parametrize(("columns", "key"), [METR_LA, PEMS_BAY])
@pytest.mark.parametrize("packing", [{}, {"complevel": 9, "complib": "zlib"}])
def test_a_frame_that_pandas_wrote_gives_the_sensors_of_its_table(tmp_path, columns, key, packing):
    pytest.importorskip("tables")
    frame(columns).to_hdf(tmp_path / "a.h5", key=key, **packing)
    frame(columns).to_csv(tmp_path / "a.csv", index=False)
    pool, table = read(tmp_path / "a.h5"), read(tmp_path / "a.csv")
    assert np.allclose(pool.x, table.x, rtol=1e-6)
    assert np.allclose(pool.y, table.y, rtol=1e-6)
    assert (pool.owners, pool.told, pool.in_time_order) == (tuple(map(str, columns)), table.told, True)


def test_the_published_layout_is_enough(tmp_path):
    write(tmp_path / "a.h5")
    pool = read(tmp_path / "a.h5", horizon=2)
    assert pool.x.shape == (18, 2)
    own = pool.client == 1
    assert np.array_equal(pool.x[own], np.stack([SPEEDS[:6, 1], SPEEDS[1:7, 1]], axis=1).astype(np.float32))
    assert np.array_equal(pool.y[own], np.stack([SPEEDS[2:8, 1], SPEEDS[3:9, 1]], axis=1).astype(np.float32))


def two_types(path):
    write(path, block1_values=np.zeros((9, 1), np.int64))


def table_format(path):
    write(path, values=np.zeros((9, 3)))
    with h5py.File(path, "a") as file:
        del file["df/block0_values"]


def elsewhere(path):
    """The values are in another file, by a link or by a raw file that the array names."""
    write(path.with_name("b.h5"))
    write(path)
    with h5py.File(path, "a") as file:
        del file["df/block0_values"]
        file["df/block0_values"] = h5py.ExternalLink("b.h5", "df/block0_values")


def raw(path):
    write(path)
    (path.parent / "raw").write_bytes(SPEEDS.tobytes())
    with h5py.File(path, "a") as file:
        del file["df/block0_values"]
        outside = [(str(path.parent / "raw"), 0, SPEEDS.nbytes)]
        file["df"].create_dataset("block0_values", SPEEDS.shape, "f8", external=outside)


def huge(path):
    write(path)
    with h5py.File(path, "a") as file:
        del file["df/block0_values"]
        file["df"].create_dataset("block0_values", (1 << 40, 3), "f8", chunks=(1000, 3))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.write_text("speed\n64.4\n"), "it can't be read as HDF5: "),
        (lambda path: (write(path), path.write_bytes(path.read_bytes()[:900])), "it can't be read as HDF5: "),
        (lambda path: h5py.File(path, "w").close(), "it must hold one frame of pandas; it holds nothing"),
        (table_format, '"df" lacks block0_values of a frame in the format "fixed" of pandas; it holds axis0, axis1, '),
        (two_types, 'the columns of "df" have several types; all must be numbers of one'),
        (elsewhere, '"df" lacks block0_values '),
        (raw, "/df/block0_values is kept in other files"),
        (huge, "/df/block0_values takes 26,388.3 GB, more than the memory that is free"),
        (lambda path: write(path, items=["a", "b"]), r'"df" has values of shape (9, 3) for columns (2,)'),
        (lambda path: write(path, values=np.full((9, 3), b"x")), "/df/block0_values is no array of numbers"),
        (lambda path: write(path, values=np.full((9, 3), np.nan)), '"df" holds NaN, an infinity or '),
    ],
)
def test_what_is_no_such_frame_is_told_in_one_line(tmp_path, damage, said):
    damage(tmp_path / "a.h5")
    with pytest.raises(DataError) as raised:
        read(tmp_path / "a.h5")
    assert str(raised.value).startswith(f'data.root = "{tmp_path / "a.h5"}": {said}')
    assert "\n" not in str(raised.value)


def test_without_its_library_it_says_what_to_install(tmp_path, monkeypatch):
    write(tmp_path / "a.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"it takes h5py to read HDF5: \.venv/bin/pip install -e '\.\[hdf5\]'"):
        read(tmp_path / "a.h5")
