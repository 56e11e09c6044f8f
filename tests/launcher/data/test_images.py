"""Published sets of images in the layouts of their publishers, and what is said when they are not there."""

import gzip
import hashlib
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data.images import torchvision_datasets
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load

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


def read(dataset, root=None, **keys):
    return load(DataSection(dataset=dataset, root=root, **keys), 0)


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


# -- EMNIST ------------------------------------------------------------------------------------------------------------


def write_emnist(folder, subset, *, first=0, classes=10, compress=True):
    """As in gzip.zip of nist.gov/itl/products-and-services/emnist-dataset. Label k's image has k at row 0, column 1 of
    the upright image; the file stores columns first."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, labels in (("train", np.arange(classes) + first), ("test", np.array([first, first + classes - 1]))):
        images = np.zeros((len(labels), 28, 28), np.uint8)
        images[:, 1, 0] = labels
        for kind, content in (("images-idx3", idx(images)), ("labels-idx1", idx(labels))):
            path = folder / f"emnist-{subset}-{part}-{kind}-ubyte{'.gz' if compress else ''}"
            path.write_bytes(gzip.compress(content) if compress else content)


@pytest.mark.parametrize(
    ("subset", "place", "first", "classes"),
    [("balanced", "gzip", 0, 47), ("letters", ".", 1, 26), ("byclass", "EMNIST/raw", 0, 62), ("digits", ".", 0, 10)],
)
def test_emnist_is_turned_upright_and_letters_start_at_0(tmp_path, subset, place, first, classes):
    write_emnist(tmp_path / place, subset, first=first, classes=classes, compress=place != "EMNIST/raw")
    pool = read("emnist", tmp_path, subset=subset)
    assert (pool.x.shape, pool.outputs, pool.scale) == ((classes + 2, 1, 28, 28), classes, 255.0)
    assert pool.y.tolist() == [*range(classes), 0, classes - 1]
    assert pool.x[:, 0, 0, 1].tolist() == [label + first for label in pool.y]
    assert pool.x.sum() == pool.x[:, 0, 0, 1].sum()
    assert pool.tests.tolist() == [False] * classes + [True] * 2


def test_emnist_says_what_is_missing_and_which_labels_a_subset_has(tmp_path):
    write_emnist(tmp_path, "letters", first=0, classes=27)
    with pytest.raises(DataError, match=r"letters-train-labels-idx1-ubyte\.gz holds label 0: labels are 1 to 26$"):
        read("emnist", tmp_path, subset="letters")
    with pytest.raises(DataError, match=r"it lacks files of emnist: emnist-balanced-train-images-idx3-ubyte, "):
        read("emnist", tmp_path)
    write_emnist(tmp_path, "digits")
    damaged = tmp_path / "emnist-digits-test-images-idx3-ubyte.gz"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"emnist-digits-test-images-idx3-ubyte\.gz can't be read: [^\n]*$"):
        read("emnist", tmp_path, subset="digits")


# -- CIFAR-100 ---------------------------------------------------------------------------------------------------------


def write_cifar100(folder, coarse=(4, 19, 0), fine=(0, 99, 51)):
    """As cs.toronto.edu/~kriz/cifar.html says: <1 x coarse label><1 x fine label><3072 x pixel>, of which the first
    1024 are red, the next green, the last blue, each row by row. The last image is for testing. Returns the pixels."""
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (len(fine), 3072), dtype=np.uint8)
    rows = [bytes(each) + row.tobytes() for *each, row in zip(coarse, fine, pixels, strict=True)]
    (folder / "train.bin").write_bytes(b"".join(rows[:-1]))
    (folder / "test.bin").write_bytes(rows[-1])
    return pixels


@pytest.mark.parametrize("place", ["", "cifar-100-binary"])
def test_cifar100_has_100_classes_or_20_superclasses_and_the_published_split(tmp_path, place):
    pixels = write_cifar100(tmp_path / "data" / place)
    pool = read("cifar100", tmp_path / "data")
    assert [pool.x[1, c, i, j] for c, i, j in np.ndindex(3, 32, 32)] == pixels[1].tolist()
    assert (pool.x.shape, pool.outputs, pool.y.tolist(), pool.scale) == ((3, 3, 32, 32), 100, [0, 99, 51], 255.0)
    assert pool.tests.tolist() == [False, False, True]
    assert pool.families[[0, 99, 51]].tolist() == [4, 19, 0]
    pool = read("cifar100", tmp_path / "data", superclasses=True)
    assert (pool.outputs, pool.y.tolist()) == (20, [4, 19, 0])


@pytest.mark.parametrize(
    ("keys", "damage", "complaint"),
    [
        (
            {},
            lambda folder: (folder / "test.bin").write_bytes(bytes(3073)),
            r"test\.bin has 3,073 bytes; an image takes",
        ),
        ({}, lambda at: (at / "test.bin").write_bytes(b""), r"test\.bin has 0 bytes"),
        (
            {},
            lambda folder: (folder / "test.bin").unlink(),
            r"it lacks train\.bin and test\.bin of cifar-100-binary.*gz$",
        ),
        ({"fine": (0, 100, 1)}, None, r"train\.bin holds fine label 100: those are 0 to 99$"),
        ({"coarse": (0, 1, 20)}, None, r"test\.bin holds coarse label 20: those are 0 to 19$"),
    ],
)
def test_a_damaged_cifar100_is_refused(tmp_path, keys, damage, complaint):
    write_cifar100(tmp_path / "data", **keys)
    if damage:
        damage(tmp_path / "data")
    with pytest.raises(DataError, match=complaint):
        read("cifar100", tmp_path / "data")


def test_the_pickled_cifar100_is_not_read(tmp_path):
    (tmp_path / "cifar-100-python").mkdir()
    for name in ("meta", "train", "test"):
        (tmp_path / "cifar-100-python" / name).write_bytes(pickle.dumps({}))
    with pytest.raises(DataError, match="the Python version is pickled, and not read"):
        read("cifar100", tmp_path)
