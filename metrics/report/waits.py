"""Charts of when each client of a method's first run worked, and whom it waited for."""

from collections.abc import Iterator

from pandas import DataFrame, concat

from ..reader import client_name, read_owners
from .chart import MOST_PIXELS, PALETTE, Chart, Spec, category, quantity
from .methods import Method
from .of_one import pixels


def planned(method: Method) -> Iterator[Chart]:
    """Draws when the first and the last client complete each round, as planned and as it was."""
    if method.twin is None or not method.twin.rounds:
        return
    rows = [(each.round, each.ends.planned, each.ends.measured) for each in method.twin.rounds]
    ends = DataFrame(rows, columns=["round", "planned_s", "measured_s"]).groupby("round").agg(["min", "max"])
    written = ends.set_axis([f"{name}_{which}" for name, which in ends.columns], axis=1).reset_index()
    both = [
        DataFrame(
            {"round": ends.index, "first": ends[f"{name}_s", "min"], "last": ends[f"{name}_s", "max"], "which": name}
        )
        for name in ("planned", "measured")
    ]
    colour = category("which", None, scale={"domain": ["planned", "measured"], "range": list(PALETTE[:2])})
    x, y = quantity("round", "round"), quantity("last", "completed, s")
    band = {"y": quantity("first", y["title"]), "y2": {"field": "last"}}
    spec: Spec = {
        "width": "container",
        "height": 260,
        "encoding": {"x": x, "color": colour},
        "layer": [
            {"mark": {"type": "area", "opacity": 0.18}, "encoding": band},
            {"mark": {"type": "line", "tooltip": True}, "encoding": {"y": y, "strokeDash": category("which", None)}},
        ],
    }  # fmt: skip
    caption = "When clients completed each round. Bands go from the first client to the last."
    name = f"planned-{method.number + 1}"
    yield Chart(name, "Round by round, planned and measured", caption, spec, {"ends": concat(both)}, written=written)


def timeline(method: Method) -> Iterator[Chart]:
    """Draws, where a scenario tells time, when each client worked and when it waited."""
    rounds = method.reader.rounds
    rounds = rounds[rounds.node.isin(method.clients)]
    if rounds.idle_s.isna().all():
        return
    clock = "virtual" if rounds.virtual_s.notna().any() else "wall"
    first = max(1, MOST_PIXELS // max(1, 2 * len(method.clients)))  # rounds
    rounds = rounds[rounds["round"] <= first].sort_values(["node", "round"])
    ends = rounds[f"{clock}_s"].astype(float)
    begins = ends.groupby(rounds.node).shift(1)
    idle = rounds.idle_s.fillna(0.0).astype(float)
    about = rounds[["node", "round"]].assign(begin=begins, middle=(ends - idle).clip(lower=begins), end=ends)
    about = about.dropna(subset="begin")
    works = about.assign(what="works", from_s=about.begin, to_s=about.middle)
    waits = about.assign(what="waits", from_s=about.middle, to_s=about.end)[about.end > about.middle]
    table = concat([works, waits])[["node", "round", "what", "from_s", "to_s"]]
    if table.empty:
        return
    kinds = {"domain": ["works", "waits"], "range": [PALETTE[0], PALETTE[5]]}
    tooltip = [category("node", "client"), quantity("round", "round"), category("what", "what"),
               quantity("from_s", "from, s", format=".5~g"), quantity("to_s", "to, s", format=".5~g")]  # fmt: skip
    spec: Spec = {
        "width": "container",
        "height": len(method.clients) * max(4, min(18, 500 // len(method.clients))),
        "params": [{"name": "zoomed", "select": {**_ALONG_TIME}, "bind": "scales"}],
        "usermeta": {"embedOptions": {"renderer": "canvas"}},
        "mark": {"type": "bar", "clip": True},
        "encoding": {
            "x": quantity("from_s", f"{clock} time, s", scale={"nice": False}),
            "x2": {"field": "to_s"},
            "y": {
                "field": "node",
                "type": "ordinal",
                "title": "client",
                "axis": {"labelOverlap": True, "ticks": False},
            },
            "color": category("what", None, scale=kinds),
            "opacity": {"condition": {"test": "datum.round % 2", "value": 1}, "value": 0.75},  # tells rounds apart
            "tooltip": tooltip,
        },
    }
    some = "" if rounds["round"].max() < first else f" The first {first:,} rounds."
    caption = (
        f"When each client worked and when it waited; drag to move, turn the wheel with Ctrl or Shift to zoom.{some}"
    )
    yield Chart(f"timeline-{method.number + 1}", "Who worked when", caption, spec, {"spans": table})


_ALONG_TIME = {"type": "interval", "encodings": ["x"], "zoom": "wheel![event.ctrlKey || event.shiftKey]"}


def waiting(method: Method) -> Iterator[Chart]:
    """Draws, where clients of a scenario waited, how long round by round, and for whom."""
    rounds = method.reader.rounds
    rounds = rounds[rounds.node.isin(method.clients) & (rounds["round"] > 0)]
    if not rounds.idle_s.any():
        return
    clock = "virtual" if rounds.virtual_s.notna().any() else "wall"
    last = int(rounds["round"].max())
    together = -(-last // max(1, MOST_PIXELS // max(1, len(method.clients))))  # rounds in a pixel
    rounds = rounds.assign(round=(rounds["round"] - 1) // together * together + 1)
    table = rounds.groupby(["node", "round"]).idle_s.sum().reset_index()
    of = "round" if together == 1 else f"{together} rounds"
    spec = pixels(("round", "round"), ("node", "client"), ("idle_s", f"waited, {clock} s"), square=False)
    caption = (
        f"How long each client waited in each {of} (empty: it took no part), {table.idle_s.sum():,.3g} {clock} seconds "
        "in all."
    )
    number = method.number + 1
    total, owners = method.reader.waited_total, read_owners(method.run.folder)
    yield Chart(f"waiting-{number}", "Who waited for whom", caption, spec, {"waiting": table}, written=total)
    total = total[total.waited_for >= 0]
    caused = total.groupby("waited_for").idle_s.sum().sort_values(ascending=False).head(12).reset_index()
    if caused.empty:
        return
    caused["who"] = [client_name(node, owners) for node in caused.waited_for]
    x = quantity("idle_s", f"others waited for it, {clock} s")
    y = category("who", None, sort=caused.who.tolist(), axis={"grid": False, "ticks": False})
    bars: Spec = {"width": "container", "height": 20 * len(caused), "mark": {"type": "bar", "tooltip": True},
                  "encoding": {"x": x, "y": y}}  # fmt: skip
    caption = (
        "The clients that others waited for longest; a round's waiting is put down to the neighbour that came last."
    )
    yield Chart(f"waited-for-{number}", "Whom others waited for", caption, bars, {"caused": caused})
