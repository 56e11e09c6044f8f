"""The keys of sections, and what is wrong with a configuration, in one line for each key at fault: the key, the value
given, what is allowed."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from ...node.algorithms import ALGORITHMS
from ...topology.errors import UserError, shown
from ...topology.section import Section


class ConfigError(UserError):
    """What is wrong with a configuration: a line for each key at fault."""


@dataclass(frozen=True)
class Key:
    kind: Any  # its type, without the metadata that it is annotated with
    metadata: tuple[Any, ...]
    default: Any  # MISSING: it is required


def _keys_of(section: Any) -> dict[str, Key]:
    hints, keys = get_type_hints(section, include_extras=True), {}
    for field in fields(section):
        hint = hints[field.name]
        kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        keys[field.name] = Key(kind, tuple(metadata), default)
    return keys


keys_of: Callable[[Any], dict[str, Key]] = cache(_keys_of)
"""Returns {name: key}, in their order, of a section or an algorithm's settings."""


def explain(error: ValidationError, tree: Mapping[str, Any], root: Any) -> list[str]:
    """``tree`` is what was given for a ``root``. Of a list without an entry that is wrong, only the entry is told."""
    problems = error.errors()
    above = {problem["loc"][:length] for problem in problems for length in range(len(problem["loc"]))}
    return [_explain(problem, tree, root) for problem in problems if problem["loc"] not in above]


def _explain(problem: Any, tree: Mapping[str, Any], root: Any) -> str:
    kind, value, where, context = problem["type"], problem["input"], list(problem["loc"]), problem.get("ctx", {})
    if where[:1] == ["algorithm"]:
        del where[1:2]  # the algorithm's name, which pydantic puts between the section and its key
    if kind.startswith("union_tag"):
        where.append("name")
        value = value.get("name") if isinstance(value, dict) else value
    path = ".".join(map(str, where))
    key, names = path or "the configuration", ", ".join(map(repr, ALGORITHMS))
    match kind:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return _unknown(where, tree, root)
        case "missing" | "missing_argument" | "union_tag_not_found":
            return f"{key} is missing" + (f"; allowed: {names}" if path == "algorithm.name" else "")
        case "union_tag_invalid" | "literal_error":
            return f"{key} = {shown(value)}; allowed: {context.get('expected', names)}"
        case "value_error" if isinstance(value, dict):  # a check of several keys of a table, which may name them itself
            said = str(context["error"])
            glue = "." if re.match(r"[\w.]+ = ", said) else ": "
            return glue.join(filter(None, [path, said]))
        case "value_error":
            wanted = str(context["error"])
        case "model_type" | "dataclass_type" | "model_attributes_type" | "dict_type":
            table = dict(_sections(root)).get(path)
            words = {name: get_args(each.kind) for name, each in keys_of(table).items()} if table else {}
            words |= {"name": tuple(ALGORITHMS)} if path == "algorithm" else {}
            hint = next((name for name, allowed in words.items() if value in allowed), None)
            wanted = "must be a table" + (f"; write {path}.{hint} = {value!r}" if hint else "")
        case "tuple_type":
            entries = value.strip("[] ").split(",") if isinstance(value, str) else [value]
            entries = [entry.strip("\"' ") if isinstance(entry, str) else entry for entry in entries]
            plain = not isinstance(value, dict | list) and len(entries) < 5 and len(str(value)) < 120
            wanted = "must be a list" + (f", such as {entries}" if plain else "")
        case "too_short":
            wanted = f"must have at least {context['min_length']} entries"
        case "too_long":
            wanted = f"must have at most {context['max_length']} entries"
        case "bool_type":
            wanted = "must be true or false"
        case _:
            message = problem["msg"].replace("Input should be", "must be")
            wanted = f"{message[0].lower()}{message[1:]}"
    return f"{key} = {shown(value)}: {wanted}"


def _unknown(where: Sequence[Any], tree: Mapping[str, Any], root: Any) -> str:
    if where == ["base"] or where == ["compare"]:
        return f"{where[0]}: is written outside any table of a file"
    section = root
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


def _sections(root: Any) -> Iterator[tuple[str, type[Section]]]:
    for name, key in keys_of(root).items():
        if isinstance(key.kind, type) and issubclass(key.kind, Section):
            yield name, key.kind
