"""Files of arrays: what they hold, and that no damage to them goes unnoticed."""

import os
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from sheafgossip.transport.array_file import ArrayFile, DamagedFile, digest_of, read

ARRAYS = {
    "theta": np.arange(3000.0),
    "half": np.arange(7, dtype=np.float16),
    "flags": np.array([True, False, True]),
    "bytes": np.arange(5, dtype=np.uint8),
    "turned": np.arange(6, dtype=np.int32).reshape(2, 3).T,
    "none": np.empty((0, 4), np.float32),
    "alone": np.array(7),
}


@pytest.fixture
def path(tmp_path):
    ArrayFile(ARRAYS, {"round": "40"}).save(tmp_path / "file.safetensors", lasting=True)
    return tmp_path / "file.safetensors"


def test_any_reader_of_safetensors_finds_what_was_written_the_same_in_whatever_order(path, tmp_path):
    for loaded in (load_file(path), read(path)):
        assert set(loaded) == set(ARRAYS)
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(loaded[name], array, strict=True)
    with safe_open(path, framework="np") as file:
        assert file.metadata() == {"round": "40", "sha256": digest_of(path)}
    other = ArrayFile(dict(reversed(ARRAYS.items())), {"round": "40"})
    other.save(tmp_path / "other")
    assert (tmp_path / "other").read_bytes() == path.read_bytes()
    assert other.digest == digest_of(path)


def test_every_flipped_byte_is_noticed(path):
    whole = path.read_bytes()
    for place in [*range(0, 700), *range(700, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = digest_of(path)
        except DamagedFile:
            continue
        assert found is None, place  # it bears no digest any more: its run knows that it should


@pytest.mark.parametrize("length", [0, 5, 8, 100, 5000, -1, None])
def test_a_file_that_is_cut_short_or_has_grown_is_noticed(path, length):
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" if length is None else whole[:length])
    for look in (digest_of, read):
        with pytest.raises(DamagedFile, match="is damaged"):
            look(path)


def test_a_file_from_before_there_were_digests_can_be_read(tmp_path):
    save_file({"theta": np.ones(3)}, tmp_path / "old", {"round": "1"})
    assert digest_of(tmp_path / "old") is None
    assert read(tmp_path / "old")["theta"].tolist() == [1, 1, 1]


def test_a_write_that_fails_leaves_the_file_of_before_and_nothing_else(path, monkeypatch):
    before = path.read_bytes()
    with pytest.raises(TypeError, match="object"):
        ArrayFile({"theta": np.array([object()])}).save(path)
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        ArrayFile({"theta": np.ones(3)}).save(path, lasting=True)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
