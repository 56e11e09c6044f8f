"""Images, what is said when they are not there, the choice of some samples, and tasks with a known structure."""

import gzip
import hashlib
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from sheafgossip.launcher.config.data import DataSection, SyntheticTable
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load, torchvision_datasets

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


def idx(array):
    """An IDX file's bytes, by the format's definition."""
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_mnist(folder, *, compress=False):
    """Image number k (training first) has k + 10 times its pixel's number, mod 256; its label is k."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = 10 * np.arange(6).reshape(1, 2, 3)
    for part, numbers in (("train", np.arange(6)), ("t10k", np.arange(6, 9))):
        images = (numbers[:, None, None] + pixels) % 256
        for kind, content in (("images-idx3", idx(images)), ("labels-idx1", idx(numbers))):
            path = folder / f"{part}-{kind}-ubyte{'.gz' if compress else ''}"
            path.write_bytes(gzip.compress(content) if compress else content)


def read(dataset, root=None):
    return load(DataSection(dataset=dataset, root=root), 0)


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    pool, theirs = load(DataSection(), 0), load_digits()
    assert pool.x.shape == (1797, 1, 8, 8)
    assert np.array_equal(pool.inputs(np.arange(1797))[:, 0], theirs.images / 16)
    assert np.array_equal(pool.y, theirs.target)
    assert (pool.y.dtype, pool.outputs, pool.task) == (np.int64, 10, "classification")


def test_samples_takes_that_many_different_ones_and_the_seed_says_which():
    everything = load(DataSection(), 0)
    some, same, other = (load(DataSection(samples=100), seed) for seed in (1, 1, 2))
    rows = {row.tobytes(): label for row, label in zip(everything.x, everything.y, strict=True)}
    assert len({row.tobytes() for row in some.x}) == len(some) == 100
    assert [rows[row.tobytes()] for row in some.x] == some.y.tolist()
    assert np.array_equal(some.x, same.x)
    assert not np.array_equal(some.x, other.x)


@pytest.mark.parametrize(("place", "compress"), [(".", True), ("MNIST/raw", False)])
def test_mnist_is_found_plain_or_packed_in_the_folder_or_where_torchvision_puts_it(tmp_path, place, compress):
    write_mnist(tmp_path / place, compress=compress)
    pool = read("mnist", tmp_path)
    assert (pool.x.shape, pool.y.tolist(), pool.outputs) == ((9, 1, 2, 3), list(range(9)), 10)
    inputs = pool.inputs(np.array([8]))
    assert inputs.dtype == np.float32
    assert np.allclose(inputs[0, 0], np.array([[8, 18, 28], [38, 48, 58]]) / 255, rtol=1e-7)


@pytest.mark.parametrize(
    ("file", "content", "complaint"),
    [
        ("train-images-idx3-ubyte", idx(np.zeros((6, 2, 3)))[:-1], "announces 36 entries and holds 35"),
        ("train-images-idx3-ubyte", idx(np.zeros(6)), "not an IDX file of unsigned bytes in 3 dimensions"),
        ("train-images-idx3-ubyte", b"\0\0\x0d\x03" + bytes(12), "not an IDX file"),
        ("train-images-idx3-ubyte", b"\0\0\x08\x03" + b"\xff" * 12, "announces"),
        ("train-images-idx3-ubyte", idx(np.zeros((5, 2, 3))), "has 5 images, .* has 6 labels"),
        ("train-labels-idx1-ubyte", idx(np.arange(6) + 5), "holds label 10: labels are 0 to 9"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, file, content, complaint):
    write_mnist(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        read("mnist", tmp_path)


def test_the_real_mnist_has_70000_images():
    if not (SHARED / "mnist").is_dir():
        pytest.skip(f"no MNIST files in {SHARED / 'mnist'}")
    pool = read("mnist", SHARED / "mnist")
    assert (pool.x.shape, pool.x.dtype) == ((70000, 1, 28, 28), np.uint8)  # a quarter of the memory of floats
    # Published counts of the ten digits in the training and test parts together.
    assert np.bincount(pool.y).tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]


@pytest.mark.parametrize(
    ("dataset", "file"),
    [("mnist", "train-images-idx3"), ("fashion-mnist", "train-images-idx3"), ("cifar10", "cifar-10-batches-py")],
)
def test_without_files_or_network_one_line_says_what_to_put_where(tmp_path, monkeypatch, dataset, file):
    # A port that nothing listens on: the network's absence, the same on every machine.
    for name in ("MNIST", "FashionMNIST"):
        monkeypatch.setattr(getattr(torchvision_datasets(), name), "mirrors", ["http://127.0.0.1:9/"])
    monkeypatch.setattr(torchvision_datasets().CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    monkeypatch.setenv("SHEAFGOSSIP_CACHE", str(tmp_path))
    with pytest.raises(DataError) as raised:
        read(dataset)
    said = rf'data\.dataset = "{dataset}" could not be downloaded \(.*(127\.0\.0\.1|refused).*'
    assert re.fullmatch(rf"{said}without a network, set data\.root to a folder with .*{file}.*", str(raised.value))


def test_a_download_is_read_from_the_cache_and_not_repeated(tmp_path, monkeypatch):
    downloads = []

    def fetch(folder, *, download):
        downloads.append((folder, download))
        write_mnist(folder / "FashionMNIST" / "raw")

    monkeypatch.setattr(torchvision_datasets(), "FashionMNIST", fetch)
    monkeypatch.setenv("SHEAFGOSSIP_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        assert len(read("fashion-mnist")) == 9
    assert downloads == [(tmp_path / "cache", True)]


BATCHES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


def write_batches(root, extra=None):
    """Two images a batch; every byte is drawn, every label its batch's number and then 9."""
    folder, data = root / "cifar-10-batches-py", np.random.default_rng(0).integers(0, 256, (12, 3072), dtype=np.uint8)
    folder.mkdir()
    for number, name in enumerate(BATCHES):
        batch = {"data": data[2 * number : 2 * number + 2], "labels": [number, 9], "extra": extra}
        (folder / name).write_bytes(pickle.dumps(batch))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list("abcdefghij")}))
    return data


def test_batches_with_another_checksum_are_refused_before_they_are_unpickled(tmp_path):
    class Trap:
        """Unpickling this creates a file."""

        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    write_batches(tmp_path, extra=Trap())
    with pytest.raises(DataError, match=r"^data\.root = .*corrupted[^\n]*$"):
        read("cifar10", tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_pixels_arrive_as_channel_row_column(tmp_path, monkeypatch):
    written = write_batches(tmp_path)
    reader = torchvision_datasets().CIFAR10

    def checksum(name):
        return hashlib.md5((tmp_path / "cifar-10-batches-py" / name).read_bytes()).hexdigest()

    monkeypatch.setattr(reader, "train_list", [[name, checksum(name)] for name in BATCHES[:5]])
    monkeypatch.setattr(reader, "test_list", [["test_batch", checksum("test_batch")]])
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": checksum("batches.meta")})
    pool = read("cifar10", tmp_path)
    # The published layout of a row: 1024 red bytes, 1024 green, 1024 blue, each row by row.
    assert np.array_equal(pool.x, written.reshape(12, 3, 32, 32))
    assert pool.y.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert (pool.scale, pool.outputs) == (255.0, 10)


# -- synthetic tasks, recovered by least squares -----------------------------------------------------------------------

CLIENTS = 8


def draw(task="regression", seed=3, clients=CLIENTS, **keys):
    return load(DataSection(dataset="synthetic", task=task, synthetic=SyntheticTable(**keys)), seed, clients)


def parameters(pool):
    """Of each client, by least squares: (clients, dimensions)."""
    own = [pool.client == client for client in range(pool.client.max() + 1)]
    return np.array([np.linalg.lstsq(pool.x[rows], pool.y[rows, 0], rcond=None)[0] for rows in own])


def test_a_group_has_one_task_and_deviation_is_the_distance_from_it_relative_to_its_parameters():
    theta = parameters(draw(groups=2, deviation=0, noise=0, samples=200))
    assert np.linalg.norm(theta - theta[[0] * 4 + [4] * 4], axis=1).max() < 1e-4
    assert np.linalg.norm(theta[0] - theta[4]) > 0.5
    assert draw(groups=3).groups.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    exact, apart = (parameters(draw(deviation=d, noise=0, dimensions=400, samples=500)) for d in (0, 0.3))
    distance = np.linalg.norm(apart - exact, axis=1) / np.linalg.norm(exact, axis=1)
    assert np.allclose(distance, 0.3, rtol=0.2)


def test_targets_have_deviation_1_and_what_no_model_can_explain_is_the_noise():
    pool = draw(clients=1, groups=1, noise=0.5, samples=20_000)
    assert (pool.y[:, 0] - pool.x @ parameters(pool)[0]).std() == pytest.approx(0.5, rel=0.05)
    pool = draw(clients=1, groups=1, noise=0, deviation=0, dimensions=2000, samples=2000)
    assert pool.y.std() == pytest.approx(1, rel=0.1)


def test_classes_without_noise_are_told_apart_by_a_linear_model():
    from sklearn.linear_model import LogisticRegression

    pool = draw("classification", clients=1, groups=1, classes=3, noise=0, dimensions=5, samples=400)
    assert (pool.outputs, pool.y.dtype, set(pool.y.tolist())) == (3, np.int64, {0, 1, 2})
    assert LogisticRegression(C=1e6, max_iter=5000).fit(pool.x, pool.y).score(pool.x, pool.y) == 1


def test_the_seed_alone_decides_and_a_client_does_not_depend_on_how_many_others_a_group_has():
    first, again, other = draw(seed=3), draw(seed=3), draw(seed=4)
    assert np.array_equal(np.hstack([first.x, first.y]), np.hstack([again.x, again.y]))
    assert not np.array_equal(first.x, other.x)
    fewer = draw(clients=4, groups=1)
    assert np.array_equal(fewer.y, draw(clients=8, groups=1).y[: len(fewer)])
