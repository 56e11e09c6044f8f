"""Data sets of Hugging Face, as the library itself writes them."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import sheafgossip as sg
from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load
from sheafgossip.launcher.data.shards import cut

PICTURES = np.random.default_rng(0).integers(256, size=(24, 5, 4), dtype=np.uint8)


@pytest.fixture(autouse=True, scope="module")
def datasets_imported():
    global datasets  # half a second, which only who runs these tests needs
    datasets = pytest.importorskip("datasets", reason="it writes the folders")
    datasets.disable_progress_bars()


def of(samples: int = 24, first: int = 0, **more) -> "datasets.Dataset":
    from PIL import Image

    rows = range(first, first + samples)
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog", "owl"])}
    kinds |= {"client": datasets.Value("string"), "window": datasets.Array2D((2, 3), "float32")}
    columns = {"image": [Image.fromarray(PICTURES[row]) for row in rows], "label": [row % 3 for row in rows]}
    columns |= {"client": [f"writer {row % 4}" for row in rows], "window": [np.full((2, 3), row) for row in rows]}
    made = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))
    for name, values in more.items():
        made = made.add_column(name, values)
    return made


PARTS = {"train": (0, 12), "validation": (12, 4), "test": (16, 8)}


def parts(*splits: str) -> "datasets.DatasetDict":
    return datasets.DatasetDict({split: of(PARTS[split][1], PARTS[split][0]) for split in splits or PARTS})


def read(root, **keys):
    return load(DataSection(dataset="huggingface", root=root, **keys), 0)


def write_saved(made, folder):
    made.save_to_disk(folder)


def write_hub(made, folder):  # as push_to_hub names them
    (folder / "data").mkdir(parents=True)
    for split, part in made.items():
        part.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")


def write_converted(made, folder):  # as a hub's own conversion names them, in several files
    for split, part in made.items():
        for number in range(2):
            part.shard(2, number, contiguous=True).to_parquet(folder / "default" / split / f"{number:04}.parquet")


@pytest.mark.parametrize("write", [write_saved, write_hub, write_converted])
@pytest.mark.parametrize("splits", [("train", "validation", "test"), ("train", "test"), ("train", "validation")])
def test_a_folder_keeps_pictures_labels_owners_and_the_split(tmp_path, write, splits):
    write(parts(*splits), tmp_path / "set")
    pool = read(tmp_path / "set", features=("image",))
    rows = np.concatenate([np.arange(PARTS[split][0], sum(PARTS[split])) for split in splits])
    assert np.array_equal(pool.x[:, 0], PICTURES[rows])
    assert pool.scale == 255
    assert np.array_equal(pool.y, rows % 3)
    assert [pool.owners[owner] for owner in pool.client] == [f"writer {row % 4}" for row in rows]
    assert np.array_equal(pool.tests, rows >= PARTS[splits[-1]][0])
    section = DataSection(dataset="huggingface", root=tmp_path)
    for shard in cut(section, pool, 4, 0):  # the split is kept, with no key said
        assert shard.about.test_samples == PARTS[splits[-1]][1] // 4


def test_one_table_has_no_split_and_columns_are_guessed_where_only_one_fits(tmp_path):
    of().select(range(23, 3, -1)).remove_columns(["window", "client"]).save_to_disk(tmp_path / "one")
    pool = read(tmp_path / "one")  # a selection is saved as its samples
    assert np.array_equal(pool.x[:, 0], PICTURES[23:3:-1])
    assert pool.tests is None
    assert pool.client is None
    assert "x is image, y is label" in pool.told[0]

    numbers = of().remove_columns(["image", "window", "client"]).add_column("a", np.arange(24.0))
    numbers.add_column("b", [True, False] * 12).to_parquet(tmp_path / "table.parquet")
    assert read(tmp_path / "table.parquet").x.tolist() == [[row, row % 2 == 0] for row in range(24)]
    of().to_parquet(tmp_path / "all.parquet")
    keys = {"features": ("window",), "target": "client", "client": "label", "series": True}
    pool = read(tmp_path / "all.parquet", **keys)
    assert pool.x[:, 1, 2].tolist() == list(range(24))
    assert pool.owners == ("0", "1", "2")
    assert pool.outputs == 4


def test_pictures_with_colours_and_without_are_all_given_colours(tmp_path):
    from PIL import Image

    grey, colour = Image.new("L", (2, 2), 7), Image.new("RGBA", (2, 2), (1, 2, 3, 4))
    made = datasets.Dataset.from_dict({"image": [grey, colour], "label": [0, 1]})
    made.save_to_disk(tmp_path / "set")
    assert read(tmp_path / "set").x[:, :, 0, 0].tolist() == [[7, 7, 7], [1, 2, 3]]


def test_neither_the_library_nor_a_network_is_needed_to_read_a_folder(tmp_path):
    of().save_to_disk(tmp_path / "set")
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "from pathlib import Path\n"
        "from sheafgossip.launcher.config.data import DataSection\n"
        "from sheafgossip.launcher.data.sets import load\n"
        "section = DataSection(dataset='huggingface', root=Path(sys.argv[1]), features=('window',), series=True)\n"
        "print(load(section, 0).x.sum(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "set"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"{6.0 * sum(range(24))}", "False"]


def test_without_pyarrow_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"it takes pyarrow to read it: .venv/bin/pip install -e '.\[huggingface\]'"):
        read(tmp_path)


def ragged(tmp_path):
    datasets.Dataset.from_dict({"input_ids": [[1, 2], [3]], "label": [0, 1]}).save_to_disk(tmp_path / "set")


def text(tmp_path):
    datasets.Dataset.from_dict({"text": ["a b", "c"], "label": [0, 1]}).save_to_disk(tmp_path / "set")


def unlabelled(tmp_path):
    kinds = datasets.Features({"a": datasets.Value("int8"), "label": datasets.ClassLabel(num_classes=2)})
    made = datasets.Dataset.from_dict({"a": [1, 2], "label": [-1, -1]}, features=kinds)
    datasets.DatasetDict(train=made).save_to_disk(tmp_path / "set")


def damaged(tmp_path):
    of().save_to_disk(tmp_path / "set")
    path = next((tmp_path / "set").glob("*.arrow"))
    path.write_bytes(path.read_bytes()[:500])


def outside(tmp_path):
    of().save_to_disk(tmp_path / "set")
    state = tmp_path / "set" / "state.json"
    found = json.loads(state.read_text())
    state.write_text(json.dumps(found | {"_data_files": [{"filename": "../../secret"}]}))


def several(tmp_path):
    for name in ("english", "french"):
        write_hub(parts("train"), tmp_path / "set" / name)


def paths(tmp_path):
    made = of().remove_columns(["window"]).to_pandas()
    made["image"] = [{"bytes": None, "path": "/etc/hostname"}] * 24
    (tmp_path / "set").mkdir()
    made.to_parquet(tmp_path / "set" / "train.parquet")


def no_picture(tmp_path):
    made = of().remove_columns(["window"]).to_pandas()
    made["image"] = [{"bytes": b"%!PS-Adobe-3.0 EPSF-3.0", "path": None}] * 24
    (tmp_path / "set").mkdir()
    made.to_parquet(tmp_path / "set" / "train.parquet")


def no_offsets(tmp_path):
    made = datasets.Dataset.from_dict({"words": ["aa", "bb"] * 99, "label": [0, 1] * 99})
    made.save_to_disk(tmp_path / "set")
    path = next((tmp_path / "set").glob("*.arrow"))
    offsets = np.arange(0, 20, 2, dtype="<i4").tobytes()
    assert path.read_bytes().count(offsets) == 1
    path.write_bytes(path.read_bytes().replace(offsets, np.full(10, 1 << 30, dtype="<i4").tobytes()))


def no_files(tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "state.json").write_text("{}")


def gaps(tmp_path):
    datasets.Dataset.from_dict({"a": [1, None, 3], "label": [0, 1, 0]}).save_to_disk(tmp_path / "set")


def bomb(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    zeros = pa.array(np.zeros(1 << 16, np.int8)).dictionary_encode()
    with pq.ParquetWriter(tmp_path / "set", pa.schema([("a", zeros.type), ("label", zeros.type)])) as file:
        for _ in range(4):
            file.write_table(pa.table({"a": zeros, "label": zeros}))
    (tmp_path / "set").rename(tmp_path / "set.parquet")


def pipe(name):
    def write(folder):
        (folder / "set").mkdir()
        os.mkfifo(folder / "set" / name)

    return write


@pytest.mark.parametrize(
    ("write", "keys", "said"),
    [
        (pipe("a.parquet"), {}, "it can't be read: is not a plain file"),
        (pipe("state.json"), {}, "it holds no dataset_dict.json"),
        (lambda folder: None, {}, "there is no such folder"),
        (lambda folder: (folder / "set").mkdir(), {}, "it holds no dataset_dict.json, state.json or .parquet file"),
        (ragged, {}, 'column "input_ids" has rows of 1 to 2 values; each needs as many: pad or cut them'),
        (text, {}, 'x is column "text", which is text; numbers must stand for it: use a tokenizer first'),
        (unlabelled, {}, "label is -1 in train: these samples have no label"),
        (damaged, {}, "it can't be read: "),
        (no_offsets, {"target": "words", "features": ("label",)}, "it can't be read: "),
        (no_files, {}, "it can't be read: '_data_files'"),
        (outside, {}, "set/state.json names files outside of its folder"),
        (several, {}, "it holds several data sets; name one of .*english/data, .*french/data"),
        (paths, {"features": ("image",)}, "has paths of pictures; save_to_disk of datasets puts the pictures in"),
        (no_picture, {"features": ("image",)}, 'column "image": picture 0: it is none of PNG, JPEG'),
        (gaps, {}, 'column "a" lacks 1 values'),
        (
            lambda folder: of().save_to_disk(folder / "set"),
            {"target": "who"},
            r'no column "who" \(data\.target\); its columns are image, label',
        ),
        (lambda folder: of().save_to_disk(folder / "set"), {"features": ("me",)}, 'data.features names "me"'),
    ],
)
def test_what_it_cannot_learn_from_is_told_in_a_line(tmp_path, write, keys, said):
    write(tmp_path)
    with pytest.raises(DataError, match=said) as error:
        read(tmp_path / "set", **keys)
    assert "\n" not in str(error.value)


def test_what_a_parquet_file_will_take_is_told_before_it_is_unpacked(tmp_path, monkeypatch):
    bomb(tmp_path)
    path = tmp_path / "set.parquet"
    assert path.stat().st_size < 10_000
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 2_000_000}))
    monkeypatch.setattr("pyarrow.parquet.ParquetFile.iter_batches", lambda self: pytest.fail("it is unpacked"))
    with pytest.raises(DataError, match="more than the memory that is free"):
        read(path)


def test_a_run_learns_on_the_training_samples_and_is_tested_on_the_others(tmp_path):
    parts("train", "test").save_to_disk(tmp_path / "set")
    data = {"dataset": "huggingface", "root": f"{tmp_path}/set", "features": ["image"]}
    model = {"kind": "cnn", "filters": [2], "kernel": 2}
    config = {"clients": "all", "rounds": 2, "data": data, "model": model, "topology.kind": "ring"}
    run = sg.run(config, out=tmp_path / "run", quiet=True, engine="threads")
    assert run.nodes.query("role == 'client'")[["train_samples", "test_samples"]].values.tolist() == [[3, 2]] * 4
    assert run.rounds.query("round == 2")["train_loss"].notna().all()
