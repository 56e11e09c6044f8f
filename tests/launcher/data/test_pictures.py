"""Folders of pictures, a folder a class. As github.com/KaiyangZhou/Dassl.pytorch (DATASETS.md) describes them, PACS is
PACS/images/photo/dog/056_0001.jpg and Office-31 office31/amazon/back_pack/frame_0001.jpg, as first published with a
folder images between."""

import re
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data import pictures
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load
from sheafgossip.launcher.data.shards import prepare

DOMAINS, LABELS = ("art_painting", "cartoon", "photo"), ("dog", "elephant")


def shade(*place):
    return zlib.crc32("/".join(map(str, place)).encode()) % 200


def write(root, between="", domains=DOMAINS, mode="RGB", size=(6, 4), per_class=3):
    """Each picture is of one shade, which its path determines."""
    for domain in domains:
        for label in LABELS:
            folder = root / domain / between / label
            folder.mkdir(parents=True)
            for number in range(per_class):
                value = shade(domain, label, number)
                colour = (value, value + 10, value + 20) if mode == "RGB" else value
                Image.new(mode, size, colour).save(folder / f"pic_{number:03}.png")
    return root


def read(root, **keys):
    return load(DataSection(dataset="folders", root=root, **keys), 0)


@pytest.mark.parametrize("between", ["", "images"])
def test_the_owner_is_the_domain_and_the_class_its_folder(tmp_path, between):
    write(tmp_path, between)
    (tmp_path / ".cache").mkdir()
    (tmp_path / "photo" / between / "dog" / "Thumbs.db").write_text("no picture")
    pool = read(tmp_path)
    assert (pool.x.shape, pool.x.dtype, pool.outputs, pool.owners) == ((18, 3, 4, 6), np.uint8, 2, DOMAINS)
    expected = [(d, k, shade(DOMAINS[d], LABELS[k], n)) for d in range(3) for k in range(2) for n in range(3)]
    found = zip(pool.client.tolist(), pool.y.tolist(), pool.x[:, 0, 0, 0].tolist(), strict=True)
    assert list(found) == expected
    assert (pool.x == pool.x[:, :1, :1, :1] + np.array([0, 10, 20], np.uint8)[:, None, None]).all()
    assert pool.inputs(np.array([0]))[0, 0, 0, 0] == np.float32(expected[0][2]) / np.float32(255)
    assert pool.told == (
        "2 classes: dog, elephant",
        "3 domains: art_painting (6), cartoon (6), photo (6)",
    )
    summary = prepare(DataSection(dataset="folders", root=tmp_path), 3, 0, tmp_path / "shards")
    assert [client.owner for client in summary.clients] == list(DOMAINS)


def test_image_size_resizes_by_the_antialiased_bilinear_filter(tmp_path):
    import torch

    drawn = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    for label in LABELS:
        (tmp_path / "a" / label).mkdir(parents=True)
        Image.fromarray(drawn).save(tmp_path / "a" / label / "0.png")
    Image.fromarray(drawn[:5]).save(tmp_path / "a" / "dog" / "1.png")
    pool = read(tmp_path, image_size=4)
    original = torch.tensor(np.moveaxis(drawn, 2, 0)[None], dtype=torch.float64)
    theirs = torch.nn.functional.interpolate(original, (4, 4), mode="bilinear", antialias=True)[0].numpy()
    assert np.abs(pool.x[0] - theirs).max() < 1.5  # each of two passes rounds
    with pytest.raises(DataError, match=r"dog/1\.png: it has 12x5 pixels, .*dog/0\.png 12x9: write data\.image_size"):
        read(tmp_path)


def test_grey_pictures_have_one_channel_and_three_beside_colours(tmp_path):
    write(tmp_path, mode="L", domains=("a",))
    grey = read(tmp_path)
    assert grey.x.shape == (6, 1, 4, 6)
    write(tmp_path, domains=("b",))
    both = read(tmp_path)
    assert both.x.shape == (12, 3, 4, 6)
    assert (both.x[:6] == grey.x).all()


def test_without_domains_there_are_no_owners_and_train_and_test_are_the_split(tmp_path):
    write(tmp_path / "plain", domains=(".",))
    pool = read(tmp_path / "plain")
    assert (len(pool), pool.outputs, pool.client, pool.tests) == (6, 2, None, None)
    for last in ("test", "val"):
        write(tmp_path / last, domains=("train", last))
        pool = read(tmp_path / last)
        assert pool.client is None
        shades = {shade(last, label, number) for label in LABELS for number in range(3)}
        assert set(pool.x[pool.tests][:, 0, 0, 0].tolist()) == shades
        summary = prepare(DataSection(dataset="folders", root=tmp_path / last), 1, 0, tmp_path / f"shards-{last}")
        assert (summary.clients[0].train_samples, summary.clients[0].test_samples) == (6, 6)


def announcing(width, height):
    """A picture of some bytes that announces so many pixels."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(bytes(100)))
    written = [struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each)) for each in chunks]
    return lambda root: (root / "photo" / "dog" / "pic_000.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(written))


def cut_off(root):
    path = root / "photo" / "dog" / "pic_000.png"
    path.write_bytes(path.read_bytes()[:50])


def text(root):
    (root / "photo" / "dog" / "pic_000.png").write_text("not a picture")


def sixteen_bits(root):
    Image.new("I;16", (6, 4)).save(root / "photo" / "dog" / "pic_000.png")


def two_depths(root):
    Image.new("L", (6, 4)).save(root / "photo" / "stray.png")


def one_class(root):
    for domain in DOMAINS:
        (root / domain / "elephant").rename(root.parent / f"moved-{domain}")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (announcing(9000, 9000), r"@/photo/dog/pic_000\.png: it has 9000x9000 pixels, more than the 67,108,864 read"),
        (announcing(10_000, 10_000), r"@/photo/dog/pic_000\.png: it can't be read: Image size .*"),
        (announcing(60_000, 60_000), r"@/photo/dog/pic_000\.png: it can't be read: Image size .*"),
        (cut_off, r"@/photo/dog/pic_000\.png: it can't be read: .*"),
        (text, r"@/photo/dog/pic_000\.png: it is none of PNG, JPEG, .*"),
        (sixteen_bits, r"@/photo/dog/pic_000\.png: it has mode I;16; allowed are 8 bits"),
        (two_depths, r'data\.root = "@": pictures must all be in .*@/photo/stray\.png and @/art_painting/dog/.*'),
        (one_class, r'data\.root = "@": the folders of classes holds one class only.*'),
    ],
)
def test_what_cannot_be_learned_from_is_named_in_one_line(tmp_path, damage, said):
    root = write(tmp_path / "data")
    damage(root)
    with pytest.raises(DataError) as raised:
        read(root)
    assert re.fullmatch(said, str(raised.value).replace(str(root), "@"))


def test_too_many_files_or_too_little_memory_end_it_before_pictures_are_decoded(tmp_path, monkeypatch):
    root = write(tmp_path)
    monkeypatch.setattr(pictures, "_MOST_FILES", 17)
    with pytest.raises(DataError, match="more than 17 pictures"):
        read(root)
    monkeypatch.setattr(pictures, "_MOST_FILES", 18)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Free", (), {"available": 18 * 3 * 24 - 1}))
    monkeypatch.setattr(pictures, "pixels", lambda *_: pytest.fail("it is decoded"))
    with pytest.raises(DataError, match=r"18 pictures takes .* more than the memory that is free"):
        read(root)
