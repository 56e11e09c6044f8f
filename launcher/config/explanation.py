"""The keys of sections, and what is wrong with a configuration, in one line for each key at fault: the key, the value
given, what is allowed."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from ...node.algorithms import ALGORITHMS
from ...topology.errors import UserError
from ...topology.section import Section

if TYPE_CHECKING:
    from pydantic import ValidationError

_LONGEST_SHOWN = 120


class ConfigError(UserError):
    """What is wrong with a configuration: a line for each key at fault."""


@dataclass(frozen=True)
class Key:
    kind: Any  # its type, without the metadata that it is annotated with
    metadata: tuple[Any, ...]
    default: Any  # MISSING: it is required


@cache
def _keys_of(section: Any) -> dict[str, Key]:
    hints, keys = get_type_hints(section, include_extras=True), {}
    for field in fields(section):
        hint = hints[field.name]
        kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        keys[field.name] = Key(kind, tuple(metadata), default)
    return keys


def keys_of(section: type) -> dict[str, Key]:
    """{name: key}, in their order, of a section or an algorithm's settings."""
    declared: Any = section
    return _keys_of(declared)


def explain(error: "ValidationError", tree: Mapping[str, Any], root: type[Section]) -> list[str]:
    """``tree`` is what was given for a ``root``. Of a list without an entry that is wrong, only the entry is told."""
    problems = error.errors()
    above = {problem["loc"][:length] for problem in problems for length in range(len(problem["loc"]))}
    return [_explain(problem, tree, root) for problem in problems if problem["loc"] not in above]


def _explain(problem: Any, tree: Mapping[str, Any], root: type[Section]) -> str:
    value, where = problem["input"], list(problem["loc"])
    if where[:1] == ["algorithm"]:
        del where[1:2]  # the algorithm's name, which pydantic puts between the section and its key
    if problem["type"].startswith("union_tag"):
        where.append("name")
        value = value.get("name") if isinstance(value, dict) else value
    path = ".".join(map(str, where))
    key, names = path or "the configuration", ", ".join(map(repr, ALGORITHMS))
    match problem["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return _unknown(where, tree, root)
        case "missing" | "missing_argument" | "union_tag_not_found":
            return f"{key} is missing" + (f"; allowed: {names}" if path == "algorithm.name" else "")
        case "union_tag_invalid":
            return f"{key} = {value!r}; allowed: {names}"
        case "literal_error":
            return f"{key} = {_shown(value)}; allowed: {problem['ctx']['expected']}"
        case "value_error" if isinstance(value, dict):  # a check of several keys of a table, which may name them itself
            said = str(problem["ctx"]["error"])
            glue = "." if re.match(r"[\w.]+ = ", said) else ": "
            return glue.join(filter(None, [path, said]))
        case "value_error":
            return f"{key} = {_shown(value)}: {problem['ctx']['error']}"
    return f"{key} = {_shown(value)}: {_wanted(problem, path, root)}"


def _wanted(problem: Any, path: str, root: type[Section]) -> str:
    """What the value must be."""
    value = problem["input"]
    match problem["type"]:
        case "model_type" | "dataclass_type" | "model_attributes_type" | "dict_type":
            table = dict(_sections(root)).get(path)
            words = {name: get_args(key.kind) for name, key in keys_of(table).items()} if table else {}
            words |= {"name": tuple(ALGORITHMS)} if path == "algorithm" else {}
            hint = next((name for name, allowed in words.items() if value in allowed), None)
            return "must be a table" + (f"; write {path}.{hint} = {value!r}" if hint else "")
        case "tuple_type":
            entries = value.strip("[] ").split(",") if isinstance(value, str) else [value]
            entries = [entry.strip("\"' ") if isinstance(entry, str) else entry for entry in entries]
            plain = not isinstance(value, dict | list) and len(entries) < 5 and len(str(value)) < _LONGEST_SHOWN
            return "must be a list" + (f", such as {entries}" if plain else "")
        case "too_short":
            return f"must have at least {problem['ctx']['min_length']} entries"
        case "too_long":
            return f"must have at most {problem['ctx']['max_length']} entries"
        case "bool_type":
            return "must be true or false"
    message = problem["msg"].replace("Input should be", "must be")
    return f"{message[0].lower()}{message[1:]}"


def _unknown(where: Sequence[Any], tree: Mapping[str, Any], root: type[Section]) -> str:
    if where == ["base"] or where == ["compare"]:
        return f"{where[0]}: is written outside any table of a file"
    section: Any = root
    for part in where[:-1]:
        if part == "algorithm":
            section = ALGORITHMS[tree.get("algorithm", {}).get("name", keys_of(root)["algorithm"].default.name)]
        elif not isinstance(part, int):
            kind = keys_of(section)[part].kind  # a table, tables, or perhaps one
            section = kind if isinstance(kind, type) else get_args(kind)[0]
    name, allowed = str(where[-1]), list(keys_of(section)) + (["base", "compare"] if section is root else [])
    elsewhere = [f"{place}.{name}" for place, table in _sections(root) if name in keys_of(table)]
    close = difflib.get_close_matches(name, allowed, n=1) or elsewhere
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{'.'.join(map(str, where))}: unknown key{hint}; allowed here: {', '.join(allowed)}"


def _sections(root: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    for name, key in keys_of(root).items():
        if isinstance(key.kind, type) and issubclass(key.kind, Section):
            yield name, key.kind


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
