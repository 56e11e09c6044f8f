"""Folders of pictures, a folder a class. As github.com/KaiyangZhou/Dassl.pytorch (DATASETS.md) describes them, PACS is
PACS/images/photo/dog/056_0001.jpg and Office-31 office31/amazon/back_pack/frame_0001.jpg, as first published with a
folder images between."""

import os
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


# -- lists beside the pictures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["images", "splits"])
def test_pacs_lists_tell_the_official_split(tmp_path, place):
    """Lines such as photo/dog/056_0001.jpg 1."""
    write(tmp_path / "images")
    assert read(tmp_path / "images").tests is None
    with pytest.raises(DataError, match=r'data\.split = "official" needs art_painting_crossval_kfold\.txt'):
        read(tmp_path / "images", split="official")
    (tmp_path / place).mkdir(exist_ok=True)
    for domain in DOMAINS:
        lines = [f"{domain}/{label}/pic_00{number}.png {number}" for label in LABELS for number in (0, 2)]
        (tmp_path / place / f"{domain}_crossval_kfold.txt").write_text("\n".join(lines) + "\n")
    assert read(tmp_path / "images", split="official").tests.tolist() == [True, False, True] * 6


CARS = [  # make, model, year, viewpoint, whether it is taken
    ("78", "1", "2009", 1, True),
    ("78", "2", "2009", 4, True),
    ("78", "2", "2014", 5, True),
    ("78", "2", "2008", 5, False),
    ("78", "2", "unknown", 5, False),
    ("79", "3", "2012", 5, False),  # a pickup
    ("79", "1", "2012", -1, False),
]


def write_cars(root, attributes="1 235 1.8 5 5 4\n2 0 0 4 5 2\n3 0 0 4 5 8\n"):
    (root / "data/misc").mkdir(parents=True)
    (root / "data/misc/attributes.txt").write_text(
        f"model_id maximum_speed displacement door_number seat_number type\n{attributes}"
    )
    for number, (make, model, year, viewpoint, _) in enumerate(CARS):
        for kind in ("image", "label"):
            (root / "data" / kind / make / model / year).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 4), (number, 0, 0)).save(
            root / f"data/image/{make}/{model}/{year}/{number}.jpg", quality=100
        )
        (root / f"data/label/{make}/{model}/{year}/{number}.txt").write_text(f"{viewpoint}\n1\n1 1 5 3\n")
    return root


def test_a_client_of_compcars_has_the_cars_of_a_year_and_a_viewpoint(tmp_path):
    """MAKE/MODEL/YEAR as the publisher's folders are (mmlab.ie.cuhk.edu.hk/datasets/comp_cars)."""
    pool = load(DataSection(dataset="compcars", root=write_cars(tmp_path), image_size=4), 0)
    assert (pool.x.shape, pool.outputs, pool.y.tolist()) == ((3, 3, 4, 4), 4, [3, 1, 1])
    assert [pool.owners[k] for k in pool.client] == ["2009 front", "2009 front-side", "2014 rear-side"]
    assert pool.client.tolist() == [0, 3, 29]


def adience_line(user="7@N0", original="a.jpg", face=12, age="(25, 32)", gender="m"):
    return "\t".join([user, original, str(face), age, gender, *["0000", "0", "0", "0"]])


def write_adience(root, rows):
    for fold in range(5):
        head = ["user_id", "original_image", "face_id", "age", "gender", "x", "y", "dx", "dy"]
        (root / f"fold_{fold}_data.txt").write_text("\n".join(["\t".join(head), *rows.get(fold, [])]) + "\n")
    (root / "aligned/7@N0").mkdir(parents=True)
    for face in (12, 13):
        Image.new("RGB", (8, 8)).save(root / f"aligned/7@N0/landmark_aligned_face.{face}.a.jpg")
    return root


def test_adience_tells_age_and_gender_and_its_last_fold_is_for_testing(tmp_path):
    odd = [adience_line(age="None"), adience_line(gender="u"), adience_line(age="35")]
    rows = {0: [adience_line(), *odd], 4: [adience_line(face=13, age="(38, 48)", gender="f")]}
    pool = load(DataSection(dataset="adience", root=write_adience(tmp_path, rows)), 0)
    assert (pool.y.tolist(), pool.outputs, pool.tests.tolist()) == ([9, 10], 16, [False, True])
    assert pool.told == ("left out: 1 with age None, gender m, 1 with age (25, 32), gender u, 1 with age 35, gender m",)


@pytest.mark.parametrize(
    ("dataset", "make", "said"),
    [
        ("compcars", lambda at: at.mkdir(exist_ok=True), "it lacks data/image or data/misc/attributes.txt of CompCars"),
        ("compcars", lambda at: write_cars(at, "1 2 3\n"), "attributes.txt: '1 2 3': a line has six columns"),
        ("compcars", lambda at: write_cars(at, "9 0 0 4 5 1\n"), "it holds no pictures of MPV, SUV, sedan, hatchback"),
        (
            "compcars",
            lambda at: (write_cars(at) / "data/label/78/1/2009/0.txt").write_text("6\n"),
            "label 78/1/2009/0.txt begins with '6': viewpoints are -1, 1 to 5",
        ),
        ("adience", lambda at: None, "fold_0_data.txt can't be read: No such file"),
        ("adience", lambda at: write_adience(at, {0: ["a\tb"]}), "line 2 of fold_0_data.txt has 2 columns"),
        ("adience", lambda at: write_adience(at, {0: [adience_line("../x")]}), "or a path in one"),
        ("adience", lambda at: write_adience(at, {0: [adience_line(face=99)]}), "99.a.jpg: it can't be read"),
        ("adience", lambda at: write_adience(at, {}), "its lists name no face"),
    ],
)
def test_damaged_lists_are_told_in_one_line(tmp_path, dataset, make, said):
    make(tmp_path)
    with pytest.raises(DataError) as error:
        load(DataSection(dataset=dataset, root=tmp_path), 0)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("dataset", "make", "place"),
    [
        ("folders", write, "photo/dog/pic_001.png"),
        ("compcars", lambda at: write_cars(at), "data/label/78/1/2009/0.txt"),
        ("adience", lambda at: write_adience(at, {0: [adience_line()]}), "fold_0_data.txt"),
    ],
)
def test_a_pipe_among_the_files_is_not_waited_for(tmp_path, dataset, make, place):
    make(tmp_path)
    (tmp_path / place).unlink()
    os.mkfifo(tmp_path / place)
    with pytest.raises(DataError, match=f"{place}.* can't be read: is not a plain file"):
        load(DataSection(dataset=dataset, root=tmp_path), 0)
