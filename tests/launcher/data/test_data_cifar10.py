"""CIFAR-10 through torchvision's reader. (Its import takes seconds, hence a file of its own.)"""

import hashlib
import pickle

import numpy as np
import pytest

from sheafgossip.launcher.config.sections import DataSection
from sheafgossip.launcher.data import DataError, load
from sheafgossip.launcher.data.images import Failed, _import_datasets, download

BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


class Trap:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def write_batches(root, extra=None):
    """Two images a batch; every byte is drawn, every label its batch's number and then 9."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    rng = np.random.default_rng(0)
    batches = []
    for number, name in enumerate(BATCHES):
        batch = {"data": rng.integers(0, 256, (2, 3072), dtype=np.uint8), "labels": [number, 9], "extra": extra}
        (folder / name).write_bytes(pickle.dumps(batch))
        batches.append(batch["data"])
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    return np.concatenate(batches)


def cifar10(root):
    return load(DataSection(dataset="cifar10", root=root), 0)


def test_a_folder_without_the_batches_is_answered_with_their_name(tmp_path):
    with pytest.raises(DataError, match=r"^data\.root = .* lacks the unchanged folder cifar-10-batches-py"):
        cifar10(tmp_path)


def test_batches_with_another_checksum_are_refused_before_they_are_unpickled(tmp_path):
    write_batches(tmp_path, extra=Trap(tmp_path / "sprung"))
    with pytest.raises(DataError, match=r"^data\.root = .*corrupted[^\n]*$"):
        cifar10(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_pixels_arrive_as_channel_row_column(tmp_path, monkeypatch):
    written = write_batches(tmp_path)
    reader = _import_datasets().CIFAR10

    def checksum(name):
        return hashlib.md5((tmp_path / "cifar-10-batches-py" / name).read_bytes()).hexdigest()

    monkeypatch.setattr(reader, "train_list", [[name, checksum(name)] for name in BATCHES[:5]])
    monkeypatch.setattr(reader, "test_list", [["test_batch", checksum("test_batch")]])
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": checksum("batches.meta")})
    pool = cifar10(tmp_path)
    # The published layout of a row: 1024 red bytes, 1024 green, 1024 blue, each row by row.
    assert pool.x.shape == (12, 3, 32, 32)
    for channel, row, column in ((0, 0, 1), (1, 5, 7), (2, 31, 0)):
        assert np.array_equal(pool.x[:, channel, row, column], written[:, 1024 * channel + 32 * row + column])
    assert pool.y.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert (pool.scale, pool.outputs) == (255.0, 10)


def test_a_failed_download_is_one_line(tmp_path, monkeypatch):
    # A port that nothing listens on: the network's absence, the same on every machine.
    monkeypatch.setattr(_import_datasets().FashionMNIST, "mirrors", ["http://127.0.0.1:9/"])
    with pytest.raises(Failed) as raised:
        download("FashionMNIST", tmp_path)
    assert "\n" not in str(raised.value)
    assert "127.0.0.1" in str(raised.value) or "refused" in str(raised.value)


def test_cifar10_without_a_network_names_data_root(tmp_path, monkeypatch):
    monkeypatch.setattr(_import_datasets().CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    monkeypatch.setenv("SHEAFGOSSIP_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r'^data\.dataset = "cifar10" could not be downloaded [^\n]*set data\.root to'):
        load(DataSection(dataset="cifar10"), 0)
