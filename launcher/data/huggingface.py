"""Data sets of Hugging Face: folders as the library saves them or as a hub lays them out, and objects of the library.
Folders are read by pyarrow alone, as the library would take seconds to import and write a cache."""

import io
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...metrics.config_file import require_plain_file
from ...topology.errors import install
from ..config.data import DataSection
from .files import CLIENT, Source, first_line, pool_of
from .pictures import BadPicture, opened, pixels, stacked
from .pool import Pool

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("train", "validation", "test")
_WORDS = {"training": "train", "valid": "validation", "val": "validation", "dev": "validation", "testing": "test"}
_INPUTS, _TARGETS = ("x", "image", "img", "pixel_values", "input_ids"), ("target", "label", "labels", "y")
_LONGEST = 1000  # letters of a label, or of an owner's name


def load_huggingface(section: DataSection) -> Pool:
    """What datasets.save_to_disk has written, a folder of .parquet files whose names or folders tell the split, or one
    such file. Columns are as pool_of_tables says."""
    source = Source.of(section, "a folder that datasets.save_to_disk has written, or one of .parquet files")
    if not source.path.exists():
        raise source.wrong("there is no such folder")
    try:
        import pyarrow as pa
    except ImportError as error:
        raise source.wrong(f"it takes pyarrow to read it: {install('huggingface')}") from error
    try:
        tables = {split: _table(source, files) for split, files in _files(source).items()}
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise source.wrong(f"it can't be read: {first_line(error)}") from error
    return pool_of_tables(section, source, tables)


def tables_of(found: Any) -> "dict[str, pa.Table] | None":
    """Returns {split: table} of a Dataset or of a dict of them; None of anything else."""
    library = sys.modules.get("datasets.arrow_dataset")  # without it there can be none
    if library is None:
        return None
    parts = found if isinstance(found, Mapping) else {"train": found}
    if not parts or not all(isinstance(part, library.Dataset) for part in parts.values()):
        return None
    from datasets.table import embed_table_storage  # puts in pictures of which the table has only the paths

    return {str(split): embed_table_storage(part.with_format("arrow")[:]) for split, part in parts.items()}


def _files(source: Source) -> dict[str, list[Path]]:
    """Returns {split: its files, in order}."""
    root = source.path
    if (root / "dataset_dict.json").is_file():
        splits = _json(root / "dataset_dict.json").get("splits", [])
        return {split: _saved(source, root / split) for split in splits if split in SPLITS}
    if (root / "state.json").is_file():
        return {"train": _saved(source, root)}
    found: dict[str, list[Path]] = {}
    folders: dict[Path, None] = {}
    for path in [root] if root.is_file() else sorted(root.rglob("*.parquet")):
        split = _split_in(path.stem) or _split_in(path.parent.name)
        found.setdefault(split, []).append(path)
        folders[path.parent.parent if not _split_in(path.stem) and split else path.parent] = None
    if len(folders) > 1:
        raise source.wrong(f"it holds several data sets; name one of {', '.join(map(str, folders))}")
    if not found:
        raise source.wrong("it holds no dataset_dict.json, state.json or .parquet file")
    return {split or "train": files for split, files in found.items() if split or len(found) == 1}


def _split_in(name: str) -> str:
    words = [_WORDS.get(word, word) for word in re.split(r"[^a-z]+", name.lower())]
    return next((split for split in SPLITS if split in words), "")


def _saved(source: Source, folder: Path) -> list[Path]:
    state = _json(folder / "state.json")
    if state.get("_indices_data_files"):
        raise source.wrong(f"{folder.name} was saved by a version of datasets before 2; save it again")
    names = [str(file["filename"]) for file in state["_data_files"]]
    if any(Path(name).name != name for name in names):
        raise source.wrong(f"{folder.name}/state.json names files outside of its folder")
    return [folder / name for name in names]


def _json(path: Path) -> dict[str, Any]:
    try:
        require_plain_file(path)
        with path.open("rb") as file:
            found = json.loads(file.read(1 << 24))
        return found if isinstance(found, dict) else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name}: {first_line(error)}") from error


def _table(source: Source, files: list[Path]) -> "pa.Table":
    import pyarrow as pa

    batches: list[pa.RecordBatch] = []
    schema, size = None, 0
    for path in files:
        for batch in _batches(source, path):
            schema, size = schema or batch.schema, size + batch.nbytes
            source.require_room("what it holds", size)
            batches.append(batch)
    if not batches:
        raise source.wrong("it holds no samples")
    return pa.Table.from_batches(batches, schema)


def _batches(source: Source, path: Path) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa
    import pyarrow.parquet as pq

    require_plain_file(path)
    if path.suffix != ".parquet":
        with pa.memory_map(str(path)) as file:
            for batch in pa.ipc.open_stream(file):
                batch.validate(full=True)  # what offsets lead to would otherwise be read unseen
                yield batch
        return
    source.require_parquet_room(path)
    with pq.ParquetFile(path) as parquet:
        yield from parquet.iter_batches()


def pool_of_tables(section: DataSection, source: Source, tables: "Mapping[str, pa.Table]") -> Pool:
    """Column data.target is y, or else one called label, or the only one of classes; data.client are the owners; x is
    the column of pictures, or the one that is left, or all that are left if they are numbers. Samples for validation
    are among those for training if there are others for testing, else they are those."""
    parts = {split: tables[split] for split in SPLITS if split in tables}
    if not parts:
        raise source.wrong(f"its splits are {', '.join(tables) or '(none)'}; allowed are {', '.join(SPLITS)}")
    first = next(iter(parts.values()))
    for split, table in parts.items():
        if table.column_names != first.column_names:
            raise source.wrong(f"{split} has other columns than {next(iter(parts))}: {', '.join(table.column_names)}")
    target = _target(section, source, first)
    client = (CLIENT if CLIENT in first.column_names else "") if section.client is None else section.client
    if client and client not in first.column_names:
        raise source.wrong(f'there is no column "{client}" (data.client); {_columns(first)}')
    features = _features(section, source, first, (target, client))
    told = [f"x is {', '.join(features)}", f"y is {target}", *([f"owners are {client}"] if client else [])]
    arrays: dict[str, list[np.ndarray]] = {}
    for split, table in parts.items():
        tests = len(parts) > 1 and split == list(parts)[-1]
        ending = "" if len(parts) == 1 else "_test" if tests else "_train"
        _check_labelled(source, table, target, split)
        found = {"x": _x(source, table, features), "y": array_of(source, table, target)}
        found |= {client: array_of(source, table, client)} if client else {}
        for name, values in found.items():
            arrays.setdefault(name + ending, []).append(values)
        if len(parts) > 1:
            told.append(f"{split} is for {'testing' if tests else 'training'}")
    joined = {name: _joined(source, name, values) for name, values in arrays.items()}
    pool = pool_of(replace(section, client=client), source, joined, joined.__getitem__)
    return replace(pool, told=(", ".join(told),))


def _joined(source: Source, name: str, values: list[np.ndarray]) -> np.ndarray:
    if len({each.shape[1:] for each in values}) > 1:
        raise source.wrong(f"{name} has samples of shapes {' and '.join(str(each.shape[1:]) for each in values)}")
    return np.concatenate(values)


def _columns(table: "pa.Table") -> str:
    return f"its columns are {', '.join(table.column_names)}"


def _classes(table: "pa.Table") -> list[str]:
    """Returns the columns that the library has noted as classes."""
    try:
        noted = json.loads((table.schema.metadata or {})[b"huggingface"])["info"]["features"]
        return [name for name, kind in noted.items() if kind["_type"] == "ClassLabel" and name in table.column_names]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _target(section: DataSection, source: Source, table: "pa.Table") -> str:
    columns, classes = table.column_names, _classes(table)
    if section.target in columns:
        return section.target
    guessed = [name for name in _TARGETS if name in columns] or classes
    if section.target != "target" or len(guessed) != 1:
        raise source.wrong(f'there is no column "{section.target}" (data.target); {_columns(table)}')
    return guessed[0]


def _features(section: DataSection, source: Source, table: "pa.Table", taken: tuple[str, str]) -> list[str]:
    import pyarrow as pa

    for key, names in (("data.features", section.features), ("data.drop", section.drop)):
        for name in names:
            if name not in table.column_names or name in taken:
                raise source.wrong(f'{key} names "{name}", which is no column of features; {_columns(table)}')
    if section.features:
        return list(section.features)
    left = [name for name in table.column_names if name not in (*taken, *section.drop)]
    kinds = {name: table.schema.field(name).type for name in left}
    pictures = [name for name in left if pa.types.is_struct(kinds[name])]
    named = [name for name in left if name in _INPUTS]
    for some in (left, pictures, named):
        if len(some) == 1:
            return some
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    if left and all(any(fits(kind) for fits in numbers) for kind in kinds.values()):
        return left
    raise source.wrong(f"which columns are x? Write data.features = [...]; left are {', '.join(left) or '(none)'}")


def _check_labelled(source: Source, table: "pa.Table", target: str, split: str) -> None:
    import pyarrow.compute as pc

    if target in _classes(table) and len(table) and (pc.min(table[target]).as_py() or 0) < 0:
        raise source.wrong(f"{target} is -1 in {split}: these samples have no label; leave them out")


def _x(source: Source, table: "pa.Table", features: list[str]) -> np.ndarray:
    arrays = [array_of(source, table, name) for name in features]
    for name, array in zip(features, arrays, strict=True):
        if array.dtype.kind == "U":
            as_numbers = "numbers must stand for it: use a tokenizer first, and save what it gives"
            raise source.wrong(f'x is column "{name}", which is text; {as_numbers}')
        if len(arrays) > 1 and array.ndim != 1:
            raise source.wrong(f'column "{name}" has samples of shape {array.shape[1:]}; it can be x by itself only')
    return arrays[0] if len(arrays) == 1 and arrays[0].ndim > 1 else np.stack(arrays, axis=1)


def array_of(source: Source, table: "pa.Table", name: str) -> np.ndarray:
    chunks = [_values(source, name, chunk) for chunk in table[name].chunks if len(chunk)]
    if not chunks:
        raise source.wrong(f'column "{name}" holds no samples')
    return _joined(source, f'column "{name}"', chunks)


def _values(source: Source, name: str, column: "pa.Array") -> np.ndarray:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ExtensionArray):  # an array of several dimensions, in lists
        column = column.storage
    kind = column.type
    if column.null_count:
        raise source.wrong(f'column "{name}" lacks {column.null_count} values')
    if pa.types.is_dictionary(kind):
        return _values(source, name, column.dictionary_decode())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.min_max(pc.list_value_length(column)).as_py()
        if lengths["min"] != lengths["max"]:
            between = f"{lengths['min']} to {lengths['max']} values"
            raise source.wrong(f'column "{name}" has rows of {between}; each needs as many: pad or cut them')
        inner = _values(source, name, column.flatten())
        return inner.reshape(len(column), lengths["max"], *inner.shape[1:])
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        longest = pc.max(pc.utf8_length(column)).as_py() or 0
        # Text that is no label or name is not copied: NumPy gives each as much room as the longest.
        return np.array(column.to_pylist() if longest <= _LONGEST else ["long text"])
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return column.to_numpy(zero_copy_only=False)
    if pa.types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}:
        return _pictures(source, name, pc.struct_field(column, "bytes"))
    raise source.wrong(f'column "{name}" has type {kind}; allowed are numbers, text, pictures, and lists of numbers')


def _pictures(source: Source, name: str, column: "pa.Array") -> np.ndarray:
    """Returns uint8 (n, height, width), or (n, height, width, 3) where any has colours."""
    if column.null_count:
        raise source.wrong(f'column "{name}" has paths of pictures; save_to_disk of datasets puts the pictures in')
    found: list[np.ndarray] = []
    for number, content in enumerate(column):
        try:
            with opened(io.BytesIO(content.as_buffer())) as picture:
                if not found:
                    source.require_room(f'column "{name}"', 3 * picture.width * picture.height * len(column))
                    size = picture.size
                if picture.size != size:
                    sizes = f"{size[0]}x{size[1]} and {picture.width}x{picture.height}"
                    raise source.wrong(f'column "{name}" has pictures of {sizes}; all must have one size')
                found.append(pixels(picture))
        except BadPicture as error:
            raise source.wrong(f'column "{name}": picture {number}: {error}') from error
    return stacked(found)
