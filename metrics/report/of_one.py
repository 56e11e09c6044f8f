"""Charts of one method, of its first run: its graph round by round, its maps, who was there, and who waited."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pandas import DataFrame, Series, concat

from ...topology import Graph
from ...topology.picture import INK, SOFT, layout
from ..events import GONE, THERE
from ..reader import client_name, frame_of, open_records, read_owners
from .chart import MOST_PIXELS, PALETTE, Chart, Spec, category, quantity, thinned
from .methods import Method

_MOST_LINES = 20_000  # edges, in all rounds that are shown
_MOST_FRAMES = 60
_MOST_CLIENTS_NAMED = 60
_ACROSS = {"payload_kb": "payload of the round, kB", "map_norm": "‖P_ij‖", "weight": "weight w_ij"}
_ALIKE = {"disagreement": "‖P_ij θ_i − P_ji θ_j‖", "cosine": "cosine of updates"}


def graph(method: Method) -> Iterator[Chart]:
    """Draws clients and edges in the round that a page's reader chooses, in files after the last."""
    pairs, rounds = _pairs(method), method.reader.rounds
    rounds = rounds[rounds.node.isin(method.clients)]
    if pairs.empty or rounds.empty:
        return
    frames = thinned(sorted(rounds["round"].unique().tolist()), max(2, min(_MOST_FRAMES, _MOST_LINES // len(pairs))))
    edges, size = _edges(method, pairs, frames), int(max(method.reader.nodes.node.max(), pairs.max().max())) + 1
    places = _places(method, pairs, size)
    nodes = _nodes(method, rounds, frames)
    widths, colours = ([column for column in of if edges[column].nunique() > 1] for of in (_ACROSS, _ALIKE))
    factor, title = method.scale
    nodes["metric"] *= factor
    of_edge = [category("pair", "edge"), *(
        quantity(column, title, format=".4~g")
        for column, title in (_ACROSS | _ALIKE).items() if edges[column].notna().any()
    )]  # fmt: skip
    of_node = [category("who", "who"), category("group", "group"), quantity("metric", title, format=".4~g")]
    stroke: Spec = {"value": 1.2}
    if widths:
        scale = _of_all_rounds(edges[widths[0]]) | {"range": [0.5, 3.5], "zero": False}
        stroke = quantity(widths[0], _ACROSS[widths[0]], scale=scale, legend=None)
    colour: Spec = {"value": SOFT}
    if colours:
        scale = _of_all_rounds(edges[colours[0]]) | {"scheme": "oranges"}
        colour = quantity(colours[0], _ALIKE[colours[0]], scale=scale, legend={"orient": "bottom"})
    scale = _of_all_rounds(nodes.metric) | {"scheme": "viridis", "reverse": method.run.metric == "mse"}
    fill = quantity("metric", title, scale=scale, legend={"orient": "bottom"})
    spec = _drawn(frames[-1], (stroke, colour), fill, (of_edge, of_node), size)
    caption = (
        f"{len(method.clients)} clients, {len(pairs)} edges. Clients have the colour of their last {title}; pale ones "
        "took no part in the round. Dashes lead from a client to the one that it waited for."
    ) + (f" The {len(method.attackers)} with a red ring attack." if method.attackers else "")
    choices = {
        name: {titles[column]: _shows(channel, column, titles[column], edges[column]) for column in found}
        for name, channel, found, titles in (("edge width", "strokeWidth", widths, _ACROSS),
                                             ("edge colour", "color", colours, _ALIKE))
    }  # fmt: skip
    tables = {"edges": edges.assign(pair=edges.i.astype(str) + " – " + edges.j.astype(str)), "nodes": nodes,
              "places": places}  # fmt: skip
    written = edges[edges["round"] == frames[-1]]
    chosen = {name: options for name, options in choices.items() if len(options) > 1}
    yield Chart(f"graph-{method.number + 1}", "The graph, round by round", caption, spec, tables, chosen, "", written)


def _places(method: Method, pairs: DataFrame, size: int) -> DataFrame:
    """Returns where each client is drawn, and what is said of it in all rounds."""
    drawn = Graph.of(size, zip(pairs.i.tolist(), pairs.j.tolist(), strict=True))
    places = DataFrame(layout(drawn), columns=["x", "y"]).assign(node=range(size))
    owners = read_owners(method.run.folder)
    groups = "".join(_ask(method, "SELECT value FROM meta WHERE key = 'groups'").value).split(",")
    named = dict(zip(method.clients, groups, strict=False)) if len(set(groups)) > 1 else {}
    places["attacks"] = places.node.isin(method.attackers)
    places["who"] = [_who(method, node, owners) for node in places.node]
    places["group"] = [f"group {named[node]}" if node in named else "" for node in places.node]
    places["label"] = [str(node) if size <= _MOST_CLIENTS_NAMED else "" for node in places.node]
    return places


def _of_all_rounds(values: Series) -> Spec:
    """Returns the domain that keeps a look's meaning while the round changes."""
    known = values.dropna()
    return {"domain": [float(f"{end:.6g}") for end in (known.min(), known.max())]} if known.nunique() > 1 else {}


def _shows(channel: str, column: str, title: str, values: Series) -> dict[str, Any]:
    place = f"layer.0.encoding.{channel}"
    domain = _of_all_rounds(values)["domain"]
    return {f"{place}.field": column, f"{place}.title": title, f"{place}.scale.domain": domain}


_PLAIN: Spec = {"scale": {"zero": False, "nice": False, "padding": 24}, "axis": None}
_AT = {"x": quantity("x", None, **_PLAIN), "y": quantity("y", None, **_PLAIN)}


_NUMBER: Spec = {"type": "text", "fill": INK, "fontSize": 10, "fontWeight": 600, "aria": False}


def _drawn(last: int, of_edges: Sequence[Spec], fill: Spec, tooltips: Sequence[list[Spec]], size: int) -> Spec:
    """``of_edges`` are their width and colour, ``fill`` is the colour of clients; tooltips are of both."""
    now = {"filter": "datum.round == round"}
    return {
        "width": "container",
        "height": 460,
        "params": [{"name": "round", "value": last}],
        "layer": [
            {
                "data": {"name": "edges"},
                "transform": [now, _place("i", "x", "y"), _place("j", "x2", "y2")],
                "mark": {"type": "rule", "opacity": 0.75, "invalid": "show"},
                "encoding": {
                    **_AT,
                    "x2": {"field": "x2"}, "y2": {"field": "y2"},
                    "strokeWidth": of_edges[0], "color": of_edges[1], "tooltip": tooltips[0],
                },
            },
            {
                "data": {"name": "nodes"},
                "transform": [now, {"filter": "isValid(datum.waited_for)"}, _place("node", "x", "y"),
                              _place("waited_for", "x2", "y2")],
                "mark": {"type": "rule", "color": "#d55e00", "strokeDash": [3, 3], "strokeWidth": 1.6, "aria": False},
                "encoding": {**_AT, "x2": {"field": "x2"}, "y2": {"field": "y2"}},
            },
            {
                "data": {"name": "nodes"},
                "transform": [now, {"lookup": "node", "from": {"data": {"name": "places"}, "key": "node",
                                    "fields": ["x", "y", "who", "group", "label", "attacks"]}}],
                "mark": {"type": "circle", "size": 360 if size <= _MOST_CLIENTS_NAMED else 90, "opacity": 1,
                         "stroke": "#7f7f7f", "invalid": "show"},
                "encoding": {
                    **_AT,
                    "fill": fill,
                    "opacity": {"condition": {"test": "datum.there", "value": 1}, "value": 0.25},
                    "stroke": _ring("#d62728", "#7f7f7f"), "strokeWidth": _ring(4, 1),
                    "tooltip": tooltips[1],
                },
            },
            *({"data": {"name": "places"}, "mark": mark, "encoding": {**_AT, "text": {"field": "label"}}}
              for mark in (_NUMBER | {"fill": "#fff", "stroke": "#fff", "strokeWidth": 2.5, "strokeOpacity": 0.85},
                           _NUMBER)),
        ],
    }  # fmt: skip


def _ring(attackers: str | int, others: str | int) -> Spec:
    return {"condition": {"test": "datum.attacks", "value": attackers}, "value": others}


def _who(method: Method, node: int, owners: Mapping[int, str]) -> str:
    name = method.others.get(node, client_name(node, owners))
    return f"{name}, attacks" if node in method.attackers else name


def _place(key: str, x: str, y: str) -> Spec:
    found = {"data": {"name": "places"}, "key": "node", "fields": ["x", "y"]}
    return {"lookup": key, "from": found, "as": [x, y]}


def _pairs(method: Method) -> DataFrame:
    """i < j of those who greeted each other; where clients found their neighbours on the way, of those who talked."""
    hello = method.reader.overhead
    pairs = np.unique(np.sort(hello[hello.kind == "hello"][["src", "dst"]].to_numpy(), axis=1), axis=0)
    pairs = DataFrame(pairs[(pairs >= 0).all(axis=1)], columns=["i", "j"], dtype=int)
    nodes = set(method.reader.nodes.node)
    pairs = pairs[pairs.i.isin(nodes) & pairs.j.isin(nodes) & (pairs.i < pairs.j)].reset_index(drop=True)
    if len(pairs) == len(method.clients) * (len(method.clients) - 1) / 2:
        talked = _both(method.reader.edge_total, "src", "dst").payload_bytes.sum().reset_index()
        talked = talked[(talked.payload_bytes > 0) & (talked.i >= 0)][["i", "j"]]
        return talked.reset_index(drop=True) if len(talked) else pairs
    return pairs


def _edges(method: Method, pairs: DataFrame, frames: list[int]) -> DataFrame:
    """i, j, round, what went over the edge in both directions, and of both ends the larger of what they record."""
    some = ", ".join(str(int(each)) for each in frames)
    sent = _ask(method, f"SELECT src, dst, round, payload_bytes FROM traffic WHERE round IN ({some})")
    kept = _ask(
        method,
        f"SELECT node, neighbour, round, disagreement, map_norm, weight, cosine FROM edge WHERE round IN ({some})",
    )
    every = pairs.merge(DataFrame({"round": frames}), how="cross")
    kilobytes = (_both(sent, "src", "dst", "round").payload_bytes.sum() / 1e3).rename("payload_kb").reset_index()
    recorded = ["disagreement", "map_norm", "weight", "cosine"]
    kept = kept.astype(dict.fromkeys(recorded, float))  # where none is recorded, None is slow
    learned = _both(kept, "node", "neighbour", "round")[recorded].max().reset_index()
    found = every.merge(kilobytes, "left", ["i", "j", "round"]).merge(learned, "left", ["i", "j", "round"])
    return found.astype(dict.fromkeys((*_ACROSS, *_ALIKE), float)).fillna({"payload_kb": 0.0})


def _nodes(method: Method, rounds: DataFrame, frames: list[int]) -> DataFrame:
    """node, round, metric (the last that was evaluated), there (it has completed the round), waited_for."""
    wide = rounds.pivot(index="round", columns="node", values="test_metric").ffill()
    there = rounds.pivot(index="round", columns="node", values="wall_s").notna()
    waited = rounds.assign(of=rounds.waited_for.astype(float)).pivot(index="round", columns="node", values="of")
    seen = [int(node) for node in method.clients if node in wide.columns]
    values = [each.loc[frames, seen].to_numpy().tolist() for each in (wide, there, waited)]
    rows = [
        (node, int(frame), metric, here, _node(other))
        for frame, *of_all in zip(frames, *values, strict=True)
        for node, metric, here, other in zip(seen, *of_all, strict=True)
    ]
    rows += [(node, int(frame), None, True, None) for node in method.others if node >= 0 for frame in frames]
    return DataFrame(rows, columns=["node", "round", "metric", "there", "waited_for"]).astype({"metric": float})


def _node(value: Any) -> int | None:
    return int(value) if value >= 0 else None  # nan is neither


def _both(rows: DataFrame, one: str, other: str, *more: str) -> Any:
    ends = rows[[one, other]]
    return rows.assign(i=ends.min(axis=1), j=ends.max(axis=1)).groupby(["i", "j", *more])


def _ask(method: Method, query: str) -> DataFrame:
    with open_records(method.run.folder, check=("edge",)) as records:
        return frame_of(records, query)


def map_norms(method: Method) -> Iterator[Chart]:
    """Draws the heat map of the main paper's Figure 4."""
    last = "round = (SELECT max(round) FROM edge)"
    norms = _ask(method, f"SELECT node, neighbour, map_norm FROM edge WHERE {last} ORDER BY node, neighbour")
    if norms.empty or norms.map_norm.nunique() < 2 or len(norms) > MOST_PIXELS:
        return
    spec = pixels(("neighbour", "neighbour j"), ("node", "client i"), ("map_norm", "‖P_ij‖"))
    caption = "Pixel (i, j) is the Frobenius norm of P_ij after the last round; pairs without an edge are empty."
    yield Chart(f"maps-{method.number + 1}", "Restriction maps", caption, spec, {"maps": norms})


def pixels(x: tuple[str, str], y: tuple[str, str], value: tuple[str, str], *, square: bool = True) -> Spec:
    """Returns a heat map of the table's columns, each with its title."""
    ticks = {"labelOverlap": True, "ticks": False, "labelAngle": 0}
    return {
        "width": 430 if square else "container",
        "height": 430 if square else 320,
        "mark": {"type": "rect", "tooltip": True},
        "usermeta": {"embedOptions": {"renderer": "canvas"}},
        "encoding": {
            "x": {"field": x[0], "type": "ordinal", "title": x[1], "axis": ticks},
            "y": {"field": y[0], "type": "ordinal", "title": y[1], "axis": ticks},
            "color": quantity(value[0], value[1], legend={"orient": "right", "title": value[1]}),
        },
    }


def presence(method: Method) -> Iterator[Chart]:
    """Draws, where clients come and go, how many take part in each round and how many are there at each moment."""
    events, rounds = method.reader.events, method.reader.rounds
    moves = events[events.node.isin(method.clients) & events.kind.isin((*GONE, *THERE))]
    rounds = rounds[rounds.node.isin(method.clients) & (rounds["round"] > 0)]
    if moves.empty or rounds.empty:
        return
    clock = "virtual_s" if rounds.virtual_s.notna().any() else "wall_s"
    moves = moves.dropna(subset=clock).sort_values(clock, kind="stable")
    late = (moves.groupby("node").kind.first() == "join").sum()
    steps = [len(method.clients) - late, *np.where(moves.kind.isin(THERE), 1, -1)]
    by_time = DataFrame({"at": [0.0, *moves[clock]], "clients": np.cumsum(steps)})
    by_time.loc[len(by_time)] = [max(rounds[clock].max(), by_time["at"].max()), by_time.clients.iloc[-1]]
    by_round = rounds.groupby("round").size().rename("clients").rename_axis("at").reset_index()
    caption = (
        f"How many of {len(method.clients)} clients took part in each round, and how many were there at each moment. "
        f"On average {by_round.clients.mean():.1f} took part in a round; {by_round.clients.min()} did at least."
    )
    names = {"by round": "round", f"by {clock.removesuffix('_s')} time": f"{clock.removesuffix('_s')} time, s"}
    tables = [frame.assign(by=name) for frame, name in zip((by_round, by_time), names, strict=True)]
    spec: Spec = {
        "width": "container",
        "height": 220,
        "transform": [{"filter": "datum.by == 'by round'"}],
        "mark": {"type": "line", "interpolate": "step-after", "tooltip": True},
        "encoding": {"x": quantity("at", "round", scale={"zero": False}), "y": quantity("clients", "clients")},
    }
    options = {
        name: {"transform.0.filter": f"datum.by == '{name}'", "encoding.x.title": title}
        for name, title in names.items()
    }
    written = concat([by_round.assign(by="round"), by_time.assign(by=clock)])
    table = {"presence": concat(tables)}
    name = f"presence-{method.number + 1}"
    yield Chart(name, "Who was there", caption, spec, table, {"show": options}, "show", written)


def memory_by_process(method: Method) -> Iterator[Chart]:
    samples = method.reader.resources
    if not samples.node.isin(method.clients).any() or samples.groupby("node").size().max() < 2:
        return
    kept = samples[samples.node.isin([*method.clients, *method.others])]
    every = max(1, len(kept) // MOST_PIXELS)
    kept = kept.groupby("node").apply(lambda own: own.iloc[::every], include_groups=False).reset_index(level=0)
    table = kept[["node", "wall_s"]].assign(uss_mb=kept.uss / 1e6)
    table["what"] = [method.others.get(node, "clients") for node in table.node]
    kinds = ["clients", *[name for name in method.others.values() if name in set(table.what)]]
    scale = {"domain": kinds, "range": ["#8a8d93", *PALETTE]}
    spec: Spec = {
        "width": "container",
        "height": 260,
        "mark": {"type": "line", "point": {"size": 12}, "strokeWidth": 0.8, "tooltip": True},
        "usermeta": {"embedOptions": {"renderer": "canvas"}},
        "encoding": {
            "x": quantity("wall_s", "wall time, s"), "y": quantity("uss_mb", "own memory (USS), MB"),
            "color": category("what", None, scale=scale), "detail": category("node", "process"),
        },
    }  # fmt: skip
    caption = (
        f"Each grey line is one of {len(method.clients)} clients: what it alone holds. The libraries that all "
        "share are the fork server's; launcher, collector and fork server are sampled at the end."
    )
    written = samples[["node", "wall_s", "rss", "pss", "uss", "peak_rss"]]
    yield Chart(
        f"processes-{method.number + 1}", "Memory by process", caption, spec, {"memory": table}, written=written
    )
