"""The reference of the configuration, made from the sections and the algorithms themselves."""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen

from ...node.algorithms import ALGORITHMS
from ...node.algorithms.base import Algorithm
from ...node.settings import ArchitectureSettings, ModelSettings
from ...topology.section import Needs, Section
from ..planner.scenario import Fault
from .conditions import EdgeTable
from .data import ClustersTable, DriftTable, SyntheticTable
from .section import keys_of
from .sections import RunConfig


@dataclass(frozen=True)
class _Key:
    name: str
    values: str
    default: str
    meaning: str
    needs: str = ""

    def __str__(self) -> str:
        head = " · ".join(filter(None, [f"- **`{self.name}`**", self.values, self.default, self.needs]))
        return f"{head}\n\n  {_escaped(self.meaning)}" if self.meaning else head


def describe() -> str:
    """Markdown: every key of every table with what is allowed, its default and its meaning."""
    return "\n\n".join([_INTRODUCTION, *_top_level(), *_tables(), *_algorithms(), _COMPARE, _BASE, _SET])


def _top_level() -> Iterator[str]:
    yield "## Keys outside any table"
    yield from map(str, _keys(RunConfig, [name for name in keys_of(RunConfig) if not _is_table(name)]))


def _tables() -> Iterator[str]:
    for name in filter(_is_table, keys_of(RunConfig)):
        if name == "algorithm":
            continue
        repeated = _repeated(name)
        section: type[Section] = repeated or keys_of(RunConfig)[name].kind
        yield from _table(f"[[{name}]]" if repeated else f"[{name}]", section)
        if section is ModelSettings:
            keys = ", ".join(f"`{key}`" for key in keys_of(ArchitectureSettings))
            yield f"A `[[model.mix]]` table takes {keys}, as above, with the same defaults."
        for table in (key.default for key in keys_of(section).values() if isinstance(key.default, Section)):
            yield from _table(f"[{_TABLE_OF[type(table)]}]", type(table))
        for below in (kind for key in keys_of(section).values() for kind in get_args(key.kind)):
            if below is EdgeTable:
                yield from _table(f"[[{_TABLE_OF[below]}]]", below)
            if below is DriftTable:
                yield from _table(f"[{_TABLE_OF[below]}]", below)


def _table(title: str, section: type[Section]) -> Iterator[str]:
    yield f"## `{title}`"
    yield _escaped(_one_line(section.__doc__)) + (" There may be any number of these tables." if "[[" in title else "")
    yield from map(str, _keys(section, keys_of(section)))


def _algorithms() -> Iterator[str]:
    default = keys_of(RunConfig)["algorithm"].default.name
    names = ", ".join(f"`{_toml(name)}`" for name in ALGORITHMS)
    yield "## `[algorithm]`"
    yield f"- **`name`** · one of {names} · required in this table; without the table, `{_toml(default)}`"
    yield "The other keys depend on the algorithm."
    for name, algorithm in ALGORITHMS.items():
        yield f"### `name = {_toml(name)}`"
        yield _escaped(_opening(algorithm))
        further = [key for key in keys_of(algorithm) if key != "name"]
        yield from map(str, _keys(algorithm, further)) if further else ["No further keys."]


def _opening(algorithm: type[Algorithm]) -> str:
    """The first paragraph of the algorithm's file."""
    return _one_line((sys.modules[algorithm.__module__].__doc__ or "").partition("\n\n")[0])


def _is_table(key: str) -> bool:
    return key == "algorithm" or isinstance(keys_of(RunConfig)[key].default, Section) or _repeated(key) is not None


def _repeated(key: str) -> type[Section] | None:
    """What each entry is, of a key that is written as [[tables]]."""
    kind = next(iter(get_args(keys_of(RunConfig)[key].kind)), None)
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def _keys(section: type, names: Iterable[str]) -> Iterator[_Key]:
    below = _texts_below(section)
    for name in names:
        key = keys_of(section)[name]
        beside = [text for text in key.metadata if isinstance(text, str)]
        meaning = _one_line(" ".join([*beside, below.get(name, "")]))
        yield _Key(name, _values(key.kind, key.metadata), _default(key.default), meaning, _needs(key.metadata))


def _texts_below(section: type) -> dict[str, str]:
    """{key: the text below it}, as the classes are written."""
    found = {}
    for kind in reversed([kind for kind in section.__mro__ if issubclass(kind, Section)]):
        written = ast.parse(dedent(inspect.getsource(kind))).body[0]
        assert isinstance(written, ast.ClassDef)
        for line, below in pairwise(written.body):
            match line, below:
                case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    found[key] = meaning
    return found


def _needs(metadata: Iterable[Any]) -> str:
    """In which configurations the key has an effect, where not in all."""
    texts = []
    for needs in (each for each in metadata if isinstance(each, Needs)):
        keys = " or ".join(f"`{key}`" for key in needs.keys)
        values = " or ".join(f"`{_toml(value)}`" for value in needs.values)
        texts.append(f"{keys} = {values}" if values else keys)
    return f"only with {' and '.join(texts)}" if texts else ""


def _values(kind: Any, bounds: Iterable[Any] = ()) -> str:
    """What a value of this type may be, in words."""
    if get_origin(kind) is Annotated:
        return _values(kind.__origin__, [*bounds, *kind.__metadata__])
    if get_origin(kind) is Literal:
        values = [f"`{_toml(value)}`" for value in get_args(kind)]
        return "one of " + ", ".join(values) if len(values) > 1 else values[0]
    if get_origin(kind) is tuple:
        return f"list{_length(bounds)}, each entry: {_values(get_args(kind)[0])}"
    alternatives = [part for part in get_args(kind) if part is not type(None)]
    if alternatives:
        return " or ".join(map(_values, alternatives))
    if kind in (ClustersTable, DriftTable, SyntheticTable):
        return f"`[{_TABLE_OF[kind]}]` table"
    words = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text", Path: "path"}
    return " ".join([words[kind] if kind in words else f"`[[{_TABLE_OF[kind]}]]` table", *_limits(bounds)])


_TABLE_OF: dict[type[Section], str] = {
    ArchitectureSettings: "model.mix",
    DriftTable: "data.drift",
    EdgeTable: "links.edges",
    Fault: "faults",
    ClustersTable: "data.clusters",
    SyntheticTable: "data.synthetic",
}


def _length(bounds: Iterable[Any]) -> str:
    """ " of 2", or nothing."""
    limits = list(bounds)
    least = next((limit.min_length for limit in limits if isinstance(limit, MinLen)), 0)
    most = next((limit.max_length for limit in limits if isinstance(limit, MaxLen)), None)
    return "" if most is None else f" of {most}" if least == most else f" of at most {most}"


def _limits(bounds: Iterable[Any]) -> list[str]:
    """["above 0, at most 1"], or nothing."""
    texts = []
    for limit in bounds:
        match limit:
            case Ge(ge=value):
                texts.append(f"at least {value}")
            case Gt(gt=value):
                texts.append(f"above {value}")
            case Le(le=value):
                texts.append(f"at most {value}")
            case Lt(lt=value):
                texts.append(f"below {value}")
    return [", ".join(texts)] if texts else []


def _default(value: Any) -> str:
    if value is MISSING:
        return "required"
    if isinstance(value, Section):
        return ""
    return "not set by default" if value is None else f"default `{_toml(value)}`"


def _toml(value: Any) -> str:
    return json.dumps(value)  # of these plain values, both languages write the same


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


def _escaped(text: str) -> str:
    for mark in ("\\", "*", "<"):
        text = text.replace(mark, f"\\{mark}")
    return text


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
other file that have no effect beside those of this one are told before the run starts.

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
