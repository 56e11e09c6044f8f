"""docs/api.md, made from what the public names say of themselves: ``python -m sheafgossip.reference``."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pkgutil import resolve_name
from textwrap import dedent
from typing import Any

from . import given
from .metrics.reader import FRAMES
from .metrics.records import TABLES
from .node.algorithms import server

GROUPS = {
    "Runs": "run resume replay open_run sweep tune plan calibrate twin compare verify Run Sweep Table Config Error "
    "RunError",
    "What runs return": "launcher.planner.plan.Plan launcher.commands.tune.Tuning launcher.studies.tuning.Tuned "
    "launcher.studies.search.Trial launcher.studies.calibration.Calibration "
    "launcher.studies.calibration.Figure metrics.summary.RunSummary metrics.summary.Spread "
    "metrics.summary.TrafficTotal metrics.summary.MemoryTotal metrics.verification.Verified "
    "metrics.twins.Twins metrics.twin.Twin metrics.twin.RoundTime metrics.twin.ClientTime metrics.twin.LinkTime "
    "metrics.twin.Seconds",
    "Algorithms": "Algorithm ServerAlgorithm SecureSum Traits NEEDS_NEW_UPLOADS TAKES_OLD_UPLOADS Vector State Facts "
    "Cost Work SettingsError weighted_mean",
    "What an algorithm is given": "Client Peers Edge Neighbour Setup Graph GraphSequence RunFacts RoundReport "
    "Architecture",
    "Tests of an algorithm": "testing.Network testing.check",
}
SHOWN = {  # what is public of a class that holds more
    "Client": "node role clients rounds seed facts model alpha steps takes_one_full_step train_samples train_loss "
    "theta blocks state report neighbours successors predecessors learn gradient batches gradient_on loss_of "
    "features_of hold_out held_out start class_features class_moments class_counts inputs steps_of generator",
    "Peers": "round neighbours exchange send receive as_heard left_out",
    "Architecture": "kind input_shape outputs size features last_size parameters parameters_of size_of places_of",
    "Neighbour": "node parameters weight samples facts",
    "Plan": "end_s events conditions",
    "Config": "",
    "Graph": "clients edges directed of successors predecessors degree is_connected",
}

_INTRODUCTION = """\
# Reference of Python

What `import sheafgossip as sg` has, made by `make docs` from the docstrings. [python.md](python.md) and
[add-an-algorithm.md](add-an-algorithm.md) are the introductions. d is the number of a model's parameters, `np` is
numpy; names that end in `_s` are seconds, those in `_bytes` bytes. A `Source` is the path of a TOML file, its tables as
a dict, whose keys may have dots, or a `Config`; a `Folder` is a path."""

_FRAMES = """\
The tables of a run, as pandas frames from `run.NAME` and in `run.sqlite` ([run-folder.md](run-folder.md) has the views
and the conventions). Memory and traffic are in bytes, times in seconds: `wall_s` since all clients were connected,
`virtual_s` as planned."""


def describe() -> str:
    parts = [_INTRODUCTION]
    for title, names in GROUPS.items():
        parts += [f"## {title}", *(text for name in names.split() for text in _described(name) if text)]
    parts += ["## Frames of a run", _FRAMES]
    for frame, table in FRAMES.items():
        if table in TABLES:
            about = f"Table `{table}`. {_text(TABLES[table].__doc__)}"
            parts += [f"### run.{frame}", about, "\n".join(_members(frame, TABLES[table]))]
    return "\n\n".join(parts)


def _described(name: str) -> Iterator[str]:
    thing: Any = resolve_name(f"sheafgossip.{name}")
    title = name if name.startswith("testing.") else name.rpartition(".")[2]
    written = _written(thing)
    if isinstance(written, ast.FunctionDef):
        yield f"### {title}"
        yield f"```python\n{_signature(title, written, wrapped=True)}\n```"
        yield _text(thing.__doc__)
    elif isinstance(written, ast.ClassDef):
        base = next((each.__name__ for each in thing.__bases__ if each.__name__ in _titles()), "")
        yield f"### {title}{f' ({base})' if base else ''}"
        yield _text("" if (thing.__doc__ or "").startswith(f"{thing.__name__}(") else thing.__doc__)
        yield "\n".join(_members(title, thing))
    else:
        yield f"### {title}"
        yield _text(_constant(title))


def _titles() -> list[str]:
    return [name.rpartition(".")[2] for names in GROUPS.values() for name in names.split()]


def _written(thing: Any) -> Any:
    return ast.parse(dedent(inspect.getsource(thing))).body[0] if hasattr(thing, "__qualname__") else None


def _constant(name: str) -> str:
    """Returns the text below it."""
    written = ast.parse(inspect.getsource(server)).body
    place = next(place for place, node in enumerate(written) if ast.unparse(node).startswith(f"{name} ="))
    return str(ast.literal_eval(ast.unparse(written[place + 1])))


def _members(title: str, thing: type) -> list[str]:
    """Returns what is public of a class, and of those bases that are not described themselves, as entries of a list.
    Raises LookupError."""
    found: dict[str, str] = {}
    for kind in thing.__mro__:
        if not kind.__module__.startswith("sheafgossip.") or (kind is not thing and kind.__name__ in _titles()):
            break
        found = dict(_entries(kind)) | found
    wanted = SHOWN[title].split() if title in SHOWN else list(found)
    if missing := [name for name in wanted if name not in found]:
        raise LookupError(f"{title} has no {', '.join(missing)}, or it has no docstring")
    return [f"- {found[name]}" for name in wanted]


def _entries(kind: type) -> Iterator[tuple[str, str]]:
    """Yields (name, Markdown) of the fields, and of the properties and methods with a docstring, of a class."""
    source = dedent(inspect.getsource(kind))
    lines, body = source.encode().splitlines(), _written(kind).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                text = lines[(node.end_lineno or 1) - 1][node.end_col_offset :].decode().partition("#")[2]
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    text += str(after.value.value)
                default = "" if node.value is None or "field(" in ast.unparse(node.value) else ast.unparse(node.value)
                yield name, _entry(f"{name}: {_type(node.annotation)}{default and ' = '}{default}", text)
            case ast.FunctionDef(name=name) if not name.startswith("_") and ast.get_docstring(node):
                decorators = [ast.unparse(each) for each in node.decorator_list]
                code = f"{name}: {_type(node.returns)}" if "property" in decorators else _signature(name, node)
                yield name, _entry(code, ast.get_docstring(node) or "")


def _entry(code: str, text: str) -> str:
    said = " ".join(_text(text).split())
    if re.match("[a-z]+ ", said):
        said = said[0].upper() + said[1:]
    return f"**`{code}`**" + (f" · {said}" if said else "")


def _signature(name: str, node: ast.FunctionDef, *, wrapped: bool = False) -> str:
    told, nothing = node.args, [None] * len(node.args.args)
    values = [*nothing, *told.defaults][len(told.defaults) :]
    parts = [_argument(each, value) for each, value in zip(told.args, values, strict=True)]
    parts = parts[1:] if parts[:1] in (["self"], ["cls"]) else parts
    options = list(_options(told.kwarg)) if told.kwarg else []
    if told.vararg:
        parts.append(f"*{_argument(told.vararg, None)}")
    elif told.kwonlyargs or options:
        parts.append("*")
    parts += [_argument(each, value) for each, value in zip(told.kwonlyargs, told.kw_defaults, strict=True)]
    parts += options
    returns = f" -> {_type(node.returns)}" if node.returns else ""
    if wrapped and sum(map(len, parts)) > 80:
        return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"
    return f"{name}({', '.join(parts)}){returns}"


def _argument(given: ast.arg, value: ast.expr | None) -> str:
    kind = f": {_type(given.annotation)}" if given.annotation else ""
    return f"{given.arg}{kind}" + (f" = {ast.unparse(value)}" if value is not None else "")


def _options(argument: ast.arg) -> Iterator[str]:
    """Yields the keyword arguments that Unpack[...] stands for."""
    kind = getattr(given, _type(argument.annotation).removeprefix("Unpack[").removesuffix("]"))
    for name, type_ in kind.__annotations__.items():
        yield f"{name}: {inspect.formatannotation(type_).replace('typing.', '')} = ..."


def _type(annotation: ast.expr | None) -> str:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return ast.unparse(annotation) if annotation else "None"


def _text(doc: str | None) -> str:
    """Returns a docstring as Markdown."""
    code = re.split(r"(``.+?``)", inspect.cleandoc(doc or ""), flags=re.S)
    code[::2] = [re.sub(r"([*<_]|\[(?=\[))", r"\\\1", each) for each in code[::2]]
    return re.sub(r"docs/([\w-]+)\.md", r"[\1.md](\1.md)", "".join(code).replace("``", "`"))


if __name__ == "__main__":
    sys.stdout.write(describe() + "\n")
