"""Who waited for whom, and when."""

from __future__ import annotations

import numpy as np

from ...topology.picture import INK
from ..names import client_name, read_owners
from .drawn import Drawn, literal, new_figure, plain
from .methods import Method

_TOP = 12
_MOST_PIXELS = 50_000_000


def waiting(method: Method) -> list[Drawn]:
    """Draws, where a scenario tells time, each client's waiting round by round, and whom it waited for."""
    rounds = method.reader.rounds
    rounds = rounds[rounds.node.isin(method.clients) & (rounds["round"] > 0)]
    if rounds.idle_s.isna().all() or rounds["round"].nunique() * len(method.clients) > _MOST_PIXELS:
        return []
    clock = "virtual" if rounds.virtual_s.notna().any() else "wall"
    pixels = rounds.pivot(index="node", columns="round", values="idle_s").reindex(method.clients)
    figure, (left, right) = new_figure(10.5, 4.6, 2, gridspec_kw={"width_ratios": [3, 2]})
    image = left.imshow(
        pixels.to_numpy(), aspect="auto", cmap="cividis", interpolation="nearest",
        extent=(pixels.columns[0] - 0.5, pixels.columns[-1] + 0.5, len(pixels) - 0.5, -0.5),
    )  # fmt: skip
    bar = figure.colorbar(image, ax=left, pad=0.02)
    bar.set_label(f"waited, {clock} s", color=INK)
    bar.outline.set_visible(False)
    bar.ax.tick_params(colors=INK, labelsize=8.5)
    left.set_xlabel("round")
    left.set_ylabel("client")
    plain(left, grid="none")

    total, owners = method.reader.waited_total, read_owners(method.folders[0])
    total = total[total.waited_for >= 0]
    caused = total.groupby("waited_for").idle_s.sum().sort_values(ascending=False).head(_TOP)
    right.barh(range(len(caused)), caused, height=0.66, color="#0072B2")
    right.set_yticks(range(len(caused)), [literal(client_name(node, owners)) for node in caused.index])
    right.set_ylim(max(len(caused), 1) - 0.5, -0.5)
    right.set_xlabel(f"others waited for it, {clock} s")
    plain(right, grid="x")
    right.tick_params(axis="y", length=0)
    total_s = np.nansum(pixels.to_numpy())
    return [
        Drawn(
            f"waiting-{method.number + 1}",
            "Who waited for whom",
            f"Left: how long each client waited in each round (empty: it took no part), {total_s:,.3g} {clock} "
            "seconds in all. Right: the clients that others waited for longest; a round's waiting is put down to the "
            "neighbour that came last.",
            figure,
            total,
        )
    ]
