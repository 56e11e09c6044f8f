"""What a server has found out of how its clients are related, for reports."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from pandas import DataFrame

from ..store import RunFolderError
from .chart import Chart, Spec, quantity
from .methods import Method
from .of_one import pixels

_MOST = 300  # clients


def relations(method: Method) -> Iterator[Chart]:
    """Draws how far apart (FLT), or how alike (SFMTL-Graph), a server has found its clients; those of a group side by
    side, and with FLT the tree of Ward's method that joins them."""
    server, config = len(method.clients), method.reader.config.get("algorithm", {})
    what = {"flt": "distances", "sfmtl-graph": "weights"}.get(str(config.get("name")))
    if what is None or len(method.clients) > _MOST:
        return
    try:
        state = method.reader.state()[server]
        values, groups = state[what], state["model_of" if what == "distances" else "community"]
        related = state["related"] if what == "distances" else values
    except (RunFolderError, KeyError):  # of a run that has not come so far, or of an older version
        return
    if server < 2 or {values.shape, related.shape} != {(server, server)} or groups.shape != (server,):
        return
    tree = _ward(related) if what == "distances" else None
    order = (np.argsort(groups, kind="stable") if tree is None else np.array(tree["leaves"])).tolist()
    k, other = np.indices(values.shape).reshape(2, -1)
    data = DataFrame({"client": k, "other": other, what: values.ravel(), "group": groups[k]})
    spec = pixels(("other", "client"), ("client", "client"), (what, "a_kl" if tree is None else "A_ij"))
    for axis in "xy":
        spec["encoding"][axis]["sort"] = order
    caption = f"Pixel (k, l) is {what} of the server's last state, communities side by side; empty ones were not heard."
    if tree is not None:
        caption = (
            "Pixel (i, j) is the least distance of two clients' centroids, as the server found it before the first "
            "round; empty pixels were not heard. Clients stand in the order of the tree below."
        )
    yield Chart(
        f"relations-{method.number + 1}", "Relations of clients", caption, spec, {"relations": data.dropna(subset=what)}
    )
    if tree is not None:
        yield _drawn(tree, order, method)


def _drawn(tree: dict[str, Any], order: list[int], method: Method) -> Chart:
    rows = [
        ((place - 5) / 10, height, join)  # scipy's leaves are at 5, 15, ..
        for join, (x, y) in enumerate(zip(tree["icoord"], tree["dcoord"], strict=True))
        for place, height in zip(x, y, strict=True)
    ]
    table = DataFrame(rows, columns=["place", "height", "join"]).assign(corner=lambda rows: range(len(rows)))
    labels = f"{order}[datum.value]"
    axis = {"values": list(range(len(order))), "labelExpr": labels, "grid": False, "labelOverlap": True}
    spec: Spec = {
        "width": "container",
        "height": 240,
        "mark": {"type": "line", "color": "#5b6770", "strokeWidth": 1.1},
        "encoding": {
            "x": quantity("place", "client", axis=axis, scale={"nice": False, "padding": 8}),
            "y": quantity("height", "height of the join"),
            "detail": {"field": "join"},
            "order": quantity("corner", None),
        },
    }
    caption = "Ward's tree of the rows of who is related to whom."
    return Chart(f"tree-{method.number + 1}", "Tree of clients", caption, spec, {"tree": table})


def _ward(related: np.ndarray) -> dict[str, Any]:
    """Returns leaves and coordinates of the tree."""
    from scipy.cluster.hierarchy import dendrogram, linkage

    return dendrogram(linkage(related.astype(float), method="ward"), no_plot=True)
