"""Charts of methods side by side: what they learn, what each client gets, and what it costs."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from pandas import DataFrame, concat

from ..figures import OPENING, Values, overhead
from ..reader import RunReader, client_name, read_attackers, read_owners
from .chart import PALETTE, Chart, Choices, Spec, by_method, category, quantity, shown, thinned
from .methods import Method

_MOST_ROUNDS, _MOST_OF_A_CLIENT = 400, 60  # points of a curve
_MOST_CLIENTS = 200
_MOST_SAMPLES = 200
_AXES = {
    "round": "rounds",
    "payload_mb": "payload sent by all clients, MB",
    "wire_mb": "bytes on the wire, of all clients, MB",
    "virtual_s": "virtual time, s",
    "wall_s": "wall time, s",
}
_ON_TOP: dict[str, tuple[str, Values]] = {
    "message": ("message headers", lambda run: run.traffic.message_bytes - run.traffic.payload_bytes),
    "wire": ("framing", lambda run: run.traffic.wire_bytes - run.traffic.message_bytes),
    "opening": ("opening connections", OPENING),
    "confirmation": ("confirmations of messages", overhead("confirmation")),
    "evaluation": ("models for evaluation only", overhead("evaluation")),
    "records": ("records to the collector", overhead("records")),
}


def own_curves(methods: Sequence[Method]) -> Iterator[Chart]:
    for name in dict.fromkeys(name for method in methods for run in method.runs for name in run.metrics):
        yield from curves(methods, name)


def curves(methods: Sequence[Method], own: str = "") -> Iterator[Chart]:
    """Draws methods of one test metric, as ``spread`` does; or a metric of the user's ``own``."""
    found = [(method, curve) for method in methods if len(curve := _curve(method, own))]
    axes = {x: title for x, title in _AXES.items() if any(curve[x].notna().any() for _, curve in found)}
    if not axes:
        return
    silent = {method.name for method, curve in found if not curve.payload_mb.any()}
    if len(silent) == len(found):
        axes = {x: title for x, title in axes.items() if not x.endswith("_mb")}
    factor, title = (1.0, own) if own else methods[0].scale
    looks = _looks(method for method, _ in found)
    param, chosen = shown([method.name for method, _ in found])
    metric = own or f"test {methods[0].run.metric}"
    y = quantity("metric", f"{title}, mean over clients", scale={"zero": False})
    choices = _against(axes)
    spec: Spec = {
        "width": "container",
        "height": 330,
        "params": [param],
        "transform": [chosen, {"calculate": "datum.round", "as": "x"}],
        "encoding": {
            "x": quantity("x", None, scale={"zero": False, "nice": False}),
            "color": looks["color"],
        },
        "layer": _lines(y, looks),
    }
    spec["encoding"]["x"]["title"] = next(iter(axes.values()))
    spec["transform"][1]["calculate"] = next(iter(choices["against"].values()))["transform.1.calculate"]
    seeds = any(len(method.runs) > 1 for method, _ in found)
    over = "runs with different seeds (over clients where there is one run)" if seeds else "clients"
    caption = f"Mean over clients of the {metric}, by rounds, bytes and time. Bands: standard error over {over}."
    if silent and len(silent) < len(found):
        caption += " A method that sends nothing is a level line against bytes."
    name = re.sub(r"[^\w.-]+", "-", own) if own else methods[0].run.metric
    written = concat([curve.assign(method=method.name) for method, curve in found])
    title = f"{metric[0].upper()}{metric[1:]}"
    table = _points(found, silent, factor)
    yield Chart(f"learning-{name}", title, caption, spec, {"curve": table}, choices, "against", written)


def _points(found: Sequence[tuple[Method, DataFrame]], silent: set[str], factor: float) -> DataFrame:
    """Returns what is drawn of the curves: some points are marked, the last of a silent method is its level."""
    frames = []
    for method, curve in found:
        kept = curve.iloc[thinned(range(len(curve)), _MOST_ROUNDS)].copy()
        kept["metric"], error = factor * kept.metric, factor * kept.standard_error.fillna(0)
        marked = np.zeros(len(kept), bool)
        marked[method.number % max(1, len(kept) // 8) :: max(1, len(kept) // 8)] = True
        about = {"method": method.name, "low": kept.metric - error, "high": kept.metric + error, "marked": marked}
        frames.append(kept.assign(**about, level=(method.name in silent) & (np.arange(len(kept)) == len(kept) - 1)))
    return concat(frames).drop(columns="standard_error")


def _looks(methods: Iterable[Method]) -> Spec:
    return by_method({method.name: method.number for method in methods})


def _lines(y: Spec, looks: Spec) -> list[Spec]:
    known, dashed = {"filter": "isValid(datum.x)"}, {"strokeDash": looks["strokeDash"]}
    return [
        {
            "transform": [known],
            "mark": {"type": "area", "opacity": 0.18, "strokeWidth": 0, "clip": True},
            "encoding": {"y": quantity("low", y["title"], scale={"zero": False}), "y2": {"field": "high"}},
            "params": [{"name": "zoomed", "select": _ZOOM, "bind": "scales"}],
        },
        {"transform": [known], "mark": {"type": "line", "clip": True}, "encoding": {"y": y, **dashed}},
        {
            "transform": [{"filter": "isValid(datum.x) && datum.marked"}],
            "mark": {"type": "point", "filled": True, "size": 34, "clip": True},
            "encoding": {"y": y, "shape": looks["shape"]},
        },
        {
            "transform": [{"filter": "datum.level && !isValid(datum.x)"}],
            "mark": {"type": "rule", "clip": True, "aria": False},
            "encoding": {"x": {"value": 0}, "x2": {"value": "width"}, "y": y, **dashed},
        },
    ]


def _against(axes: Mapping[str, str]) -> Choices:
    """Returns what a reader may choose: one of the axes, {column: title}, and their scales."""
    linear = {"zero": False, "nice": False}
    log = {"type": "log", "nice": False}
    x_axes = {
        title: {
            "transform.1.calculate": f"datum.{x}" if not x.endswith("_mb") else f"datum.{x} > 0 ? datum.{x} : null",
            "encoding.x.title": title,
            "encoding.x.scale": log if x.endswith("_mb") else {"zero": False, "nice": False},
        }
        for x, title in axes.items()
    }
    return {
        "against": x_axes,
        "x scale": {
            "automatic": {}, "linear": {"encoding.x.scale": linear}, "log": {"encoding.x.scale": log}
        },
        "y scale": {
            scale: {f"layer.{place}.encoding.y.scale": {"type": scale, "zero": False} for place in range(4)}
            for scale in ("linear", "log")
        },
    }  # fmt: skip


_ZOOM = {"type": "interval", "zoom": "wheel![event.ctrlKey || event.shiftKey]"}


def _curve(method: Method, own: str) -> DataFrame:
    """Returns means over seeds by round; standard_error is over seeds, or over clients where there is one seed."""
    frames = []
    for run in method.runs:
        reader = RunReader(run.folder)
        rounds = reader.rounds.rename(columns={"test_metric": "value"})
        sent = reader.round_cumulative.set_index("round")
        if own:
            values = reader.metrics
            values = values[values["name"] == own].drop(columns="name")
            rounds = rounds.drop(columns="value").merge(values, on=["node", "round"])
        honest = rounds.node.isin(method.clients) & ~rounds.node.isin(read_attackers(run.folder))
        evaluated = rounds[honest].dropna(subset="value").groupby("round")
        means = evaluated.agg(metric=("value", "mean"), error=("value", "sem"), virtual_s=("virtual_s", "max"))
        size = {"payload_mb": sent.payload_bytes / 1e6, "wire_mb": sent.wire_bytes / 1e6}
        frames.append(means.assign(**size, wall_s=sent.wall_s))
    together = concat(frames).groupby("round")
    curve = together[["metric", "payload_mb", "wire_mb", "wall_s", "virtual_s"]].mean()
    errors = together.metric.sem() if len(frames) > 1 else together.error.mean()
    return curve.assign(standard_error=errors).reset_index()


def spread(methods: Sequence[Method]) -> Iterator[Chart]:
    found = [(method, latest) for method in methods if len(latest := method.latest_metric())]
    if not found:
        return
    frames = []
    for method, latest in found:
        lift = np.random.default_rng(0).uniform(-0.3, 0.3, len(latest))  # only so that dots do not hide others
        who = [client_name(row.client, {row.client: row.owner} if row.owner else {}) for row in latest.itertuples()]
        value = method.scale[0] * latest.test_metric
        frames.append(latest.assign(method=method.name, value=value, lift=lift, who=who))
    names, title = [method.name for method, _ in found], methods[0].scale[1]
    param, chosen = shown(names)
    x = quantity("value", title, scale={"zero": False})
    y = category("method", None, sort=names, axis={"grid": False, "ticks": False})
    lifted = {"yOffset": quantity("lift", None, scale={"domain": [-0.5, 0.5]})}
    colour = {"color": _looks(method for method, _ in found)["color"] | {"legend": None}}
    tooltip = [category("who", "client"), quantity("value", title, format=".4~g"), category("seed", "seed")]
    spec: Spec = {
        "width": "container",
        "height": 46 * len(names),
        "params": [param],
        "transform": [chosen],
        "encoding": {"y": y, "x": x},
        "layer": [
            {
                "mark": {"type": "circle", "size": 42, "opacity": 0.6},
                "encoding": {**lifted, **colour, "tooltip": tooltip},
            },
            {
                "mark": {"type": "tick", "thickness": 2.5, "size": 34, "aria": False},
                "encoding": {"x": x | {"aggregate": "mean"}, "color": {"value": "#5b6770"}},
            },
        ],
    }
    seeds = ", of each seed" if any(len(method.runs) > 1 for method, _ in found) else ""
    metric = methods[0].run.metric
    caption = f"A dot is a client's last test {metric}{seeds}; the bar is the mean over these. Heights have no meaning."
    table = concat(frames)
    written = table[["seed", "client", "owner", "test_metric", "method"]]
    shown_table = {"client": table[["method", "who", "seed", "value", "lift"]]}
    yield Chart(f"clients-{metric}", "Every client", caption, spec, shown_table, written=written)


def each_client(methods: Sequence[Method]) -> Iterator[Chart]:
    """Draws the first run of each method client by client."""
    frames, owners = [], dict[int, str]()
    for method in methods:
        rounds = method.reader.rounds.dropna(subset="test_metric")
        rounds = rounds[rounds.node.isin(method.clients)]
        kept = set(thinned(sorted(rounds["round"].unique()), _MOST_OF_A_CLIENT))
        rounds = rounds[rounds["round"].isin(kept)]
        about = {"method": method.name, "client": rounds.node, "value": method.scale[0] * rounds.test_metric}
        frames.append(rounds[["round"]].assign(**about))
        owners |= read_owners(method.run.folder)
    table = concat(frames)
    clients = sorted(table.client.unique())
    if len(table) == table.groupby("method").client.nunique().sum() or len(clients) > _MOST_CLIENTS:
        return  # one evaluation is what ``spread`` shows
    table = table.assign(name=table.client.map(lambda client: f"{client} {owners.get(client, '')}".strip()[:24]))
    names, title = [method.name for method in methods], methods[0].scale[1]
    param, chosen = shown(names)
    looks = {channel: look for channel, look in _looks(methods).items() if channel != "shape"}
    tooltip = [category("method", "method"), quantity("round", "round"), quantity("value", title, format=".4~g")]
    spec: Spec = {
        "params": [param],
        "transform": [chosen],
        "facet": category("name", None, sort={"field": "client"}, header={"labelPadding": 2, "labelFontSize": 10}),
        "columns": 6,
        "spacing": 12,
        "spec": {
            "width": 130,
            "height": 70,
            "mark": {"type": "line", "strokeWidth": 1.3, "tooltip": True},
            "encoding": {
                "x": quantity("round", None, axis={"tickCount": 3, "grid": False}),
                "y": quantity("value", None, scale={"zero": False}, axis={"tickCount": 3}),
                **looks, "tooltip": tooltip,
            },
        },
    }  # fmt: skip
    caption = f"{title[0].upper()}{title[1:]}, of each client by rounds; the first run of each method."
    yield Chart(f"each-{methods[0].run.metric}", "Client by client", caption, spec, {"rounds": table})


def bytes_by_level(methods: Sequence[Method]) -> Iterator[Chart]:
    found = [method for method in methods if method.run.measured]
    if not found:
        return

    def mb(method: Method, sent: Values) -> float:
        return float(np.mean([sent(run) or 0 for run in method.runs])) / 1e6

    names = [method.name for method in found]
    payload = [
        (name, mb(method, lambda run: run.traffic.payload_bytes)) for name, method in zip(names, found, strict=True)
    ]
    levels = [(name, label, mb(method, sent)) for label, sent in _ON_TOP.values()
              for name, method in zip(names, found, strict=True)]  # fmt: skip
    param, chosen = shown(names)
    y = category("method", None, sort=names, axis={"grid": False, "ticks": False})
    base: Spec = {"width": "container", "height": 24 * len(names), "params": [param], "transform": [chosen]}
    bar = {"type": "bar", "tooltip": True, "height": {"band": 0.7}}
    x = quantity("payload_mb", "payload, MB")
    text = {"text": quantity("payload_mb", None, format=",.3~r")}
    colour = {"color": _looks(found)["color"] | {"legend": None}}
    layers = [
        {"mark": bar, "encoding": colour},
        {"mark": {"type": "text", "align": "left", "dx": 4, "aria": False}, "encoding": text},
    ]
    caption = "The vectors alone, as papers count them: sums over all directed edges, means over the seeds."
    table = DataFrame(payload, columns=["method", "payload_mb"])
    yield Chart("bytes", "Payload", caption, base | {"encoding": {"x": x, "y": y}, "layer": layers}, {"bytes": table})
    table = DataFrame(levels, columns=["method", "level", "mb"])
    table = table[table.groupby("level").mb.transform("max") > 0]
    if table.empty:
        return
    kinds = list(dict.fromkeys(table.level))
    scale = {"domain": kinds, "range": [PALETTE[place % len(PALETTE)] for place in range(len(kinds))]}
    encoding = {"x": quantity("mb", "on top of the payload, MB"), "y": y, "color": category("level", None, scale=scale)}
    caption = "What comes on top of the vectors on the sockets, and what measuring itself sends; means over the seeds."
    yield Chart(
        "overhead", "On top of the payload", caption, base | {"mark": bar, "encoding": encoding}, {"bytes": table}
    )


def memory_over_time(methods: Sequence[Method]) -> Iterator[Chart]:
    found = [(method, frame) for method in methods if len(frame := _memory(method))]
    if not found:
        return
    names = [method.name for method, _ in found]
    param, chosen = shown(names)
    table = concat([frame.assign(method=method.name) for method, frame in found])
    what = {
        "clients_pss_mb": "memory of all clients (PSS), MB",
        "client_median_uss_mb": "a client's own memory (USS), MB",
    }
    looks = {channel: look for channel, look in _looks(method for method, _ in found).items() if channel != "shape"}
    base: Spec = {"width": "container", "params": [param], "transform": [chosen]}
    if all(len(frame) == 1 for _, frame in found):  # a line of one point says nothing
        y = category("method", None, sort=names, axis={"grid": False, "ticks": False})
        x = quantity("clients_pss_mb", what["clients_pss_mb"])
        bars = {"x": x, "y": y, "color": looks["color"] | {"legend": None}}
        spec = base | {"height": 24 * len(names), "mark": {"type": "bar", "tooltip": True}, "encoding": bars}
        choices = {
            "show": {title: {"encoding.x.field": column, "encoding.x.title": title} for column, title in what.items()}
        }
    else:
        x = quantity("wall_s", "wall time, s")
        y = quantity("clients_pss_mb", what["clients_pss_mb"])
        spec = base | {"height": 250, "mark": {"type": "line", "tooltip": True, "point": {"size": 14}},
                       "encoding": {"x": x, "y": y, **looks}}  # fmt: skip
        choices = {
            "show": {title: {"encoding.y.field": column, "encoding.y.title": title} for column, title in what.items()}
        }
    caption = (
        "Proportional set size, where memory shared by several processes counts once, summed over clients; and what a "
        "client alone holds, the median client. The first run of each method."
    )
    yield Chart("memory", "Memory", caption, spec, {"memory": table}, choices, "show")


def _memory(method: Method) -> DataFrame:
    """wall_s, clients_pss_mb, client_{min,median,max}_uss_mb: each client counts with its latest sample."""
    samples = method.reader.resources
    samples = samples[samples.node.isin(method.clients)]
    if samples.empty:
        return samples
    wide = samples.pivot_table(index="wall_s", columns="node", values=["pss", "uss"], aggfunc="last").ffill().dropna()
    pss, uss = wide["pss"] / 1e6, wide["uss"] / 1e6
    of_uss = {f"client_{which}_uss_mb": uss.agg(which, axis=1) for which in ("min", "median", "max")}
    frame = DataFrame({"clients_pss_mb": pss.sum(axis=1), **of_uss}).reset_index()
    return frame.iloc[thinned(range(len(frame)), _MOST_SAMPLES)]
