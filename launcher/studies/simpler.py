"""What makes a configuration simpler: its tables, as a TOML file has them, with less of something."""

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from ...metrics.config_file import flat
from ..config.data import SyntheticTable
from ..config.effect import Tree, without
from ..config.sections import validate
from ..planner.scenario import Fault
from ..prepare.assignments import connected
from ..prepare.preparation import draw_graphs, faults_of

_CONDITIONS = ("time", "compute", "stragglers", "links", "chaos", "trace", "transport", "placement", "checkpoints")
_STAY = ("time.clock", "compute.step_s", "compute.sample_s", "transport.timeout")
_DEFAULTS = {field.name: field.default for field in fields(Fault)}
_NARROWEST = 0.1  # of the later moment, for spans in seconds


def conditions_of(tree: Tree) -> list[str]:
    """Returns the keys with dots of what a run could do without."""
    found = flat({name: tree[name] for name in _CONDITIONS if name in tree})
    return [key for key in found if key not in _STAY]


def bare(tree: Tree) -> Tree:
    """Returns it without faults and conditions."""
    return with_faults(without(tree, conditions_of(tree)), [])


def with_faults_drawn(tree: Tree) -> Tree:
    """Writes the faults down that chaos draws. Raises UserError."""
    config = validate(tree)
    drawn = faults_of(config, connected(config.algorithm, draw_graphs(config)))
    return with_faults(without(tree, ["chaos"]), [_as_table(fault) for fault in drawn])


def _as_table(fault: Fault) -> Tree:
    written = {key: value for key, value in vars(fault).items() if key in _DEFAULTS and value != _DEFAULTS[key]}
    return json.loads(json.dumps(written))


def with_faults(tree: Tree, faults: Sequence[Tree]) -> Tree:
    kept = {key: value for key, value in tree.items() if key != "faults"}
    return kept | ({"faults": list(faults)} if faults else {})


def simpler_faults(fault: Tree, tree: Tree) -> Iterator[tuple[str, Tree]]:
    """Yields (what is simpler in words, the fault) for one of a configuration's."""
    for key in ("restart_after", "restart_after_s", "probability", "factor", "delay_s"):
        if key in fault:
            yield f"without {key}", {name: value for name, value in fault.items() if name != key}
    for sooner in _sooner(fault.get("restart_after", 1), 1):
        yield f"restart_after {sooner}", fault | {"restart_after": sooner}
    whom = fault if fault.keys() & {"clients", "edges", "groups"} else {"clients": range(tree["clients"])}
    for key in ("clients", "edges"):
        for part in _parts(whom.get(key, [])):
            yield f"{key} {part}", fault | {key: part}
    if "seconds" in fault:
        first, last = fault["seconds"]
        if last - first > _NARROWEST * last:
            middle = (first + last) / 2
            yield from ((f"seconds {each}", fault | {"seconds": each}) for each in ([first, middle], [middle, last]))
    elif "at_round" not in fault and "at_s" not in fault:
        first, last = fault.get("rounds", [1, tree["rounds"]])
        for part in _parts(range(first, last + 1)):
            span = [part[0], part[-1]]
            yield f"rounds {span}", fault | {"rounds": span}
    yield from _earlier(fault)


def _earlier(fault: Tree) -> Iterator[tuple[str, Tree]]:
    """The sooner it is over, the fewer rounds may be left."""
    for key, least in (("at_round", 1), ("at_s", 0.0), ("rounds", 1), ("seconds", 0.0)):
        value = fault.get(key, least)
        for first in _sooner(value[0] if isinstance(value, list) else value, least):
            new = [first, first + value[1] - value[0]] if isinstance(value, list) else first
            yield f"{key} {new}", fault | {key: new}


def _sooner(value: float, least: float) -> list[Any]:
    """Returns the least, and the middle where that is another."""
    middle = (value + least) // 2 if isinstance(value, int) else round((value + least) / 2, 1)
    return [each for each in dict.fromkeys([least, middle]) if each < value]


def _parts(values: Sequence[Any]) -> list[list[Any]]:
    """Returns it without the last or the first half, quarter, and so on down to one."""
    values, parts, size = list(values), [], len(values) // 2
    while size:
        parts += [values[:-size], values[size:]]
        size //= 2
    return parts


def with_rounds(tree: Tree, rounds: int) -> Tree:
    """Faults end with the last round, or are left out where they would begin later."""
    faults = []
    for fault in tree.get("faults", []):
        first, last = fault.get("rounds", [1, 1])
        if max(first, fault.get("at_round", 1)) <= rounds:
            faults.append(fault | ({"rounds": [first, min(last, rounds)]} if "rounds" in fault else {}))
    return with_faults(tree | {"rounds": rounds}, faults)


def with_clients(tree: Tree, count: int) -> Tree:
    """Keeps those that faults name, as far as they go, then others; they are numbered anew, in their order."""
    places = [(fault, key) for fault in tree.get("faults", []) for key in ("clients", "edges", "groups")]
    named = [client for fault, key in places for client in _flat(fault.get(key, []))]
    kept = sorted(list(dict.fromkeys([*named, *range(tree["clients"])]))[:count])
    number = {client: new for new, client in enumerate(kept)}
    smaller = copy.deepcopy(tree) | {"clients": count}
    smaller = with_faults(smaller, [new for fault in tree.get("faults", []) if (new := _among(fault, number))])
    links = smaller.get("links", {})
    for key in ("edges", "clients", "groups"):
        if key in links:
            links[key] = [new for table in links[key] if (new := _among(table, number))]
    if _is_synthetic(smaller):
        synthetic = smaller["data"].setdefault("synthetic", {})
        synthetic["groups"] = min(synthetic.get("groups", SyntheticTable().groups), count)
    if slowdown := smaller.get("compute", {}).get("slowdown"):
        smaller["compute"]["slowdown"] = [slowdown[client % len(slowdown)] for client in kept]
    if hosts := smaller.get("placement", {}).get("hosts"):
        smaller["placement"]["hosts"] = min(hosts, count)
    return smaller


def _among(table: Tree, number: dict[int, int]) -> Tree | None:
    """Returns a fault or link with the clients' new numbers; None where none of whom it is about is left."""
    new = dict(table)
    for key in table.keys() & {"clients", "between", "edges", "groups"}:
        value = table[key]
        if key == "groups":
            new[key] = [[number[i] for i in group if i in number] for group in value]
            if not all(new[key]):
                return None
        elif key == "edges":
            new[key] = [[number[i], number[j]] for i, j in value if i in number and j in number]
        else:
            new[key] = [number[i] for i in value if i in number]
        if value and (not new[key] or (key == "between" and len(new[key]) < 2)):
            return None
    return new


def _flat(values: Sequence[Any]) -> list[int]:
    return [client for each in values for client in (each if isinstance(each, list) else [each])]


def samples_of(tree: Tree) -> tuple[int, int]:
    """Returns how many samples there are, 0 where the data set tells, and the fewest that are tried."""
    data = tree.get("data", {})
    return (data.get("synthetic", {}).get("samples", 100), 4) if _is_synthetic(tree) else (data.get("samples", 0), 16)


def with_samples(tree: Tree, samples: int) -> Tree:
    data = dict(tree.get("data", {}))
    if _is_synthetic(tree):
        return tree | {"data": data | {"synthetic": data.get("synthetic", {}) | {"samples": samples}}}
    return tree | {"data": data | {"samples": samples}}


def _is_synthetic(tree: Tree) -> bool:
    return tree.get("data", {}).get("dataset") == "synthetic"
