"""What a server has found out of how its clients are related, for reports."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from pandas import DataFrame

from ...topology.picture import INK, new_figure
from ..store import RunFolderError
from .charts import heat_map
from .drawn import Drawn, Method

_MOST = 1_000  # clients


def relations(method: Method) -> Iterator[Drawn]:
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
    order = np.argsort(groups, kind="stable") if tree is None else np.array(tree["leaves"])
    label = r"$a_{kl}$" if tree is None else r"$A_{ij}$"
    figure, panels = new_figure(6.4 if tree is None else 10.0, 5.4, 1 if tree is None else 2)
    heat_map(panels[0], DataFrame(values[np.ix_(order, order)]), label, shrink=0.8, cmap="viridis")
    every = 1 + (server - 1) // 20
    for axis in (panels[0].xaxis, panels[0].yaxis):
        axis.set_ticks(range(0, server, every), [str(client) for client in order[::every]])
    panels[0].set(xlabel="client", ylabel="client")
    for end in np.flatnonzero(np.diff(groups[order])) + 0.5:
        panels[0].axhline(end, color=INK, lw=0.8)
        panels[0].axvline(end, color=INK, lw=0.8)
    caption = f"Pixel (k, l) is {what} of the server's last state; lines part communities, empty pixels were not heard."
    if tree is not None:
        for x, y in zip(tree["icoord"], tree["dcoord"], strict=True):
            panels[1].plot((np.array(x) - 5) / 10, y, color=INK, lw=0.9)  # scipy's leaves are at 5, 15, ..
        panels[1].set_xticks(range(0, server, every), [str(client) for client in order[::every]])
        panels[1].set(xlabel="client", ylabel="height of the join")
        caption = (
            "Pixel (i, j) is the least distance of two clients' centroids, as the server found it before the first "
            "round; empty pixels were not heard. Lines part the models that clients get. Beside it is Ward's tree of "
            "the rows of who is related to whom."
        )
    k, other = np.indices(values.shape).reshape(2, -1)
    data = DataFrame({"client": k, "other": other, what: values.ravel(), "group": groups[k]})
    yield Drawn(f"relations-{method.number + 1}", "Relations of clients", caption, figure, data)


def _ward(related: np.ndarray) -> dict[str, Any]:
    """Returns leaves and coordinates of the tree."""
    from scipy.cluster.hierarchy import dendrogram, linkage

    return dendrogram(linkage(related.astype(float), method="ward"), no_plot=True)
