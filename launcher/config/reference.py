"""The reference of the configuration, made from the sections and the algorithms themselves."""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Literal, get_args, get_origin

from ...node.algorithms import ALGORITHMS, Algorithm, installed, own_kind
from ...node.own_code import CodeError
from ...node.settings import ArchitectureSettings
from ...topology.section import Needs, Section
from .sections import RunConfig, keys_of

_LONG = 150  # characters of a key's text that stands once, with the first of the algorithms that have it
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def describe() -> str:
    return "\n\n".join([_INTRODUCTION, *_sections(), _COMPARE, _BASE, _SET])


def _tables(section: type, above: str = "") -> Iterator[tuple[type[Section], str]]:
    """Yields every table in a section with its title, those in a table after it."""
    for name, key in keys_of(section).items():
        for kind in (key.annotation, *get_args(key.annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                place = f"{above}{name}"
                yield kind, f"[[{place}]]" if get_origin(key.annotation) is tuple else f"[{place}]"
                yield from _tables(kind, f"{place}.")


_TITLES = dict(_tables(RunConfig))


def _sections() -> Iterator[str]:
    yield "## Keys outside any table"
    tables = {"algorithm", *(title.strip("[]") for title in _TITLES.values())}
    yield from _keys(RunConfig, keys_of(RunConfig).keys() - tables)
    for section, title in _TITLES.items():
        if section is ArchitectureSettings:
            keys = ", ".join(f"`{key}`" for key in keys_of(section))
            yield f"A `{title}` table takes {keys}, as above, with the same defaults."
            continue
        yield f"## `{title}`"
        number = " There may be any number of these tables." if "[[" in title else ""
        yield _line(section.__doc__) + number
        yield from _keys(section, keys_of(section))
    known, broken = dict(ALGORITHMS), dict[str, str]()
    for name, use in installed().items():
        try:
            known[name] = own_kind(use)
        except CodeError as error:
            broken[name] = str(error)
    names = ", ".join(f"`{json.dumps(name)}`" for name in known)
    default = json.dumps(keys_of(RunConfig)["algorithm"].default.name)
    yield "## `[algorithm]`"
    yield f"- **`name`** · one of {names} · required in this table without `use`; without the table, `{default}`"
    yield (
        '- **`use`** · text\n\n  An algorithm of your own, "FILE.py:CLASS" or "package.module:CLASS" '
        "([add-an-algorithm.md](add-an-algorithm.md)); its fields are the other keys."
    )
    yield "The other keys depend on the algorithm."
    first: dict[str, str] = {}  # the algorithm that a long text stands with
    for name, algorithm in known.items():
        yield f"### `name = {json.dumps(name)}`"
        own = algorithm.__doc__ or ""
        if own.startswith(f"{algorithm.__name__}("):  # made by dataclass: its file says it, in the first paragraph
            own = sys.modules[algorithm.__module__].__doc__ or ""
        yield _line(own.partition("\n\n")[0])
        rows = list(_keys(algorithm, keys_of(algorithm).keys() - {"name", "use"}))
        for row in rows:
            there = first.setdefault(row, name) if len(row) > _LONG else name
            yield row if there == name else f"{row.partition(' · ')[0]} · as with `{there}`"
        if not rows:
            yield "No further keys."
    for name, why in broken.items():
        yield f"### `name = {json.dumps(name)}`"
        yield _line(f"Is of an installed package, and cannot be used: {why}")


def _keys(section: type, names: Iterable[str]) -> Iterator[str]:
    below: dict[str, str] = {}  # the text below each key, as the classes are written
    for kind in filter(is_dataclass, reversed(section.__mro__)):
        written: Any = ast.parse(dedent(inspect.getsource(kind))).body[0]
        for line, after in pairwise(written.body):
            match line, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    below[name] = meaning
    for name, key in ((name, key) for name, key in keys_of(section).items() if name in names):
        if issubclass(section, Algorithm) and isinstance(table := key.get_default(), Section):
            yield f"- **`{name}`** · table\n\n  {_line(type(table).__doc__)} Its keys:"
            rows = _keys(type(table), keys_of(type(table)))
            yield from (row.replace("- **`", f"- **`{name}.", 1) for row in rows)
            continue
        about = [f"- **`{name}`**", _values(key.annotation, key.metadata)]
        if key.default is None or key.is_required():
            about.append("required" if key.is_required() else "not set by default")
        elif not isinstance(default := key.get_default(call_default_factory=True), Section):
            about.append(f"default `{json.dumps(default)}`")  # in TOML it is the same
        conditions = []
        for needs in (each for each in key.metadata if isinstance(each, Needs)):
            keys = " or ".join(f"`{key}`" for key in needs.keys)
            values = " or ".join(f"`{json.dumps(value)}`" for value in needs.values)
            conditions.append(f"{keys} = {values}" if values else keys)
        if conditions:
            about.append(f"only with {' and '.join(conditions)}")
        meaning = _line(" ".join([*(text for text in key.metadata if isinstance(text, str)), below.get(name, "")]))
        yield "\n\n  ".join(filter(None, [" · ".join(about), meaning]))


def _values(kind: Any, bounds: Iterable[Any] = ()) -> str:
    if get_origin(kind) is Annotated:
        return _values(kind.__origin__, [*bounds, *kind.__metadata__])
    if get_origin(kind) is Literal:
        values = [f"`{json.dumps(value)}`" for value in get_args(kind)]
        return "one of " + ", ".join(values) if len(values) > 1 else values[0]
    if get_origin(kind) is dict:
        return "table"
    if get_origin(kind) is tuple:
        least = next((limit.min_length for limit in bounds if hasattr(limit, "min_length")), 0)
        most = next((limit.max_length for limit in bounds if hasattr(limit, "max_length")), None)
        length = "" if most is None else f" of {most}" if least == most else f" of at most {most}"
        return f"list{length}, each entry: {_values(get_args(kind)[0])}"
    if alternatives := [part for part in get_args(kind) if part is not type(None)]:
        return " or ".join(map(_values, alternatives))
    if kind in _TITLES:
        return f"`{_TITLES[kind]}` table"
    word = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text", Path: "path"}[kind]
    limits = [f"{_LIMITS[name]} {getattr(each, name)}" for each in bounds for name in _LIMITS if hasattr(each, name)]
    return " ".join(filter(None, [word, ", ".join(limits)]))


def _line(text: str | None) -> str:
    """Returns Markdown that shows a text as it is, in one line."""
    return re.sub(r"([\\*<])", r"\\\1", " ".join((text or "").split()))


_INTRODUCTION = """\
# Configuration

A run is described by a [TOML](https://toml.io) file. Every key may be left out: its default holds. A key that does not
exist or has no effect beside the others, or a value that is not allowed, is refused with one line that names it before
anything is started.
`sheafgossip config show FILE` prints a configuration with every key filled in; this page is what
`sheafgossip config schema` prints.

Paths that are not absolute start at the configuration file's folder."""

_COMPARE = """\
## `[[compare]]`

Each of these tables describes one run: the rest of the file, with the keys of the table in place of its own. The runs
go one after the other and end in one table of results; without `[[compare]]` there is one run. Runs of the same
algorithm need a `name` each.

```toml
rounds = 200

[data]
dataset = "digits"

[[compare]]
algorithm = { name = "local" }

[[compare]]
name = "a tenth"
algorithm = { name = "sheaf-fmtl", gamma = 0.1 }
training = { alpha = 0.05 }
```

A key outside of them has to have an effect in one of the runs at least. Tables
inside a `[[compare]]` table merge key by key with those outside. `algorithm` does so as long as the name stays
the same; another name starts again from that algorithm's defaults."""

_BASE = """\
## `base`

`base = "other.toml"`, outside any table, starts from another file, named from this one's folder: what this file says
holds in place of what the other says, key by key, and its `[[compare]]` tables in place of all of the other's. A table
`[reproduction]` is no part of a run: it holds what [`sheafgossip reproduce`](reproduce.md) says of it. Keys of the
other file that have no effect beside those of this one are told before the run starts. A list of files,
`base = ["demo.toml", "calibrated.toml"]`, starts from all of them, of which later ones win in the same way.

    base = "demo.toml"
    clients = 8
    rounds = 50"""

_SET = """\
## `--set KEY=VALUE`

`run`, `sweep`, `plan`, `config show` and `topology show` take any number of these. The key is written with dots
(`--set training.alpha=0.05`), the value as in TOML; text needs no quotes unless it could be read as something else.
An override wins over the file, and a `[[compare]]` table wins over an override; one whose key all of these tables set
themselves is refused, and so is one without effect. What an override leaves without
effect is told before the run starts. Relative paths in an override start at the current folder."""
