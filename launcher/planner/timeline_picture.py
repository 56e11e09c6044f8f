"""A plan as a picture: who works, waits or is away when."""

from pathlib import Path
from typing import Any

import numpy as np

from ...topology.picture import LOOK, RASTER_FROM, legend_below, literal, new_figure, save_picture
from .plan import Plan
from .timeline import stretches_of

# Of Okabe and Ito's colours, told apart with every common colour blindness, and by their lightness too
_BARS = {"computing": ("local work", "#0072B2"), "waiting": ("waiting", "#F5C26B"), "away": ("away", "#E2E2E2")}
_MARKS = {"ends": ("crashes, leaves", "X", "#B23A00"), "returns": ("joins, is back", ">", "#007A5A")}


def draw(plan: Plan, path: Path, title: str) -> None:
    """Writes ``path`` in the format of its ending. Raises UserError where it cannot be written."""
    import matplotlib

    stretches = stretches_of(plan)
    count = len(stretches)
    raster = sum(len(own.computing) + len(own.waiting) for own in stretches) > RASTER_FROM
    with matplotlib.rc_context(LOOK | {"axes.spines.left": False}):
        figure, (axes,) = new_figure(11, min(2.2 + 0.22 * count, 22))
        for name, (label, colour) in _BARS.items():
            for client, own in enumerate(stretches):
                start, end = getattr(own, name).T
                if len(start):
                    bars = list(zip(start, end - start, strict=True))
                    axes.broken_barh(bars, (client - 0.4, 0.8), color=colour, lw=0, label=label, rasterized=raster)
                    label = ""
        for name, (label, marker, colour) in _MARKS.items():
            marks = [(when, client) for client, own in enumerate(stretches) for when in getattr(own, name)]
            if marks:
                size = float(np.clip(1400 / count, 20, 60))
                when, clients = np.array(marks).T
                look: dict[str, Any] = {"marker": marker, "c": colour, "edgecolors": "white", "lw": 0.6}
                axes.scatter(when, clients, s=size, zorder=3, label=label, **look)
        axes.set(xlim=(0, plan.end_s or 1), ylim=(count - 0.4, -0.6), xlabel="virtual seconds", ylabel="client")
        axes.set_yticks(range(0, count, 1 + (count - 1) // 40))
        axes.set_title(literal(title), loc="left", fontsize=12)
        legend_below(figure, axes)
        save_picture(figure, path)
