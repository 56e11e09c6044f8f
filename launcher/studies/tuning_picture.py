"""The picture of a search: the validation figure against each key that was searched, and the best so far."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from ...topology.picture import COLOURS, LOOK, MARKERS, SOFT, legend_below, literal, new_figure, save_picture
from .search import Trial
from .space import Distribution, Space

_WIDTH, _HEIGHT = 3.4, 2.9


def draw(path: Path, methods: Mapping[str, tuple[Space, Sequence[Trial]]]) -> None:
    """``methods`` are {name: what was searched, its trials}: those that were pruned are rings, those that came to
    nothing crosses. Raises UserError where it cannot write."""
    import matplotlib

    keys = list(dict.fromkeys(key for space, _ in methods.values() for key in space))
    metric = next((trial.metric for _, trials in methods.values() for trial in trials if trial.metric), "")
    with matplotlib.rc_context(LOOK):
        columns = min(3, 1 + len(keys))
        figure, panels = new_figure(
            _WIDTH * columns, _HEIGHT * math.ceil((1 + len(keys)) / columns), columns, 1 + len(keys), sharey=True
        )
        for number, (name, (space, trials)) in enumerate(methods.items()):
            look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number // len(COLOURS) % len(MARKERS)]}
            _draw_course(panels[0], trials, literal(name), look)
            for axes, key in zip(panels[1:], keys, strict=True):
                if key in space:
                    _draw_values(axes, key, space[key], trials, look)
        panels[0].set(xlabel="trial", title="best so far")
        for axes in panels:
            axes.set_ylabel(f"{metric} on validation samples" if axes is panels[0] else "")
            axes.grid(True)
        if len(methods) > 1:
            legend_below(figure, panels[0])
        save_picture(figure, path)


def _draw_course(axes: Any, trials: Sequence[Trial], name: str, look: Mapping[str, Any]) -> None:
    sign = 1 if any(trial.metric == "mse" for trial in trials) else -1
    best, course = math.inf, []
    for trial in trials:
        best = min(best, trial.loss) if trial.state == "finished" else best
        course.append(sign * best if best < math.inf else math.nan)
    numbers = [trial.number for trial in trials]
    axes.step(numbers, course, where="post", color=look["color"], label=name)
    heights = _heights(trials)
    axes.scatter(list(heights), list(heights.values()), s=12, alpha=0.6, **look)


def _heights(trials: Sequence[Trial]) -> dict[int, float]:
    """Returns {number of a trial: where it is drawn}. One that was pruned has fewer seeds, which may be easy or hard
    ones: it is put as far from the trials that have finished as it was from them at these seeds."""
    finished = [trial for trial in trials if trial.state == "finished" and trial.of_seeds]
    found = {trial.number: trial.mean for trial in finished}
    for trial in trials:
        if trial.state == "pruned" and trial.of_seeds:
            more = [each.mean - mean(each.of_seeds[: len(trial.of_seeds)]) for each in finished]
            found[trial.number] = trial.mean + (mean(more) if more else 0.0)
    return found


def _draw_values(axes: Any, key: str, what: Distribution, trials: Sequence[Trial], look: Mapping[str, Any]) -> None:
    axes.set_title(literal(key))
    if what.choices:
        axes.set_xticks(range(len(what.choices)), [literal(str(each)) for each in what.choices])
    else:
        axes.set_xscale("log" if what.log else "linear")
        axes.set_xlim(what.at(-0.03), what.at(1.03)) if not what.whole else None
    heights = _heights(trials)
    x = {each.number: what.choices.index(each.values[key]) if what.choices else each.values[key] for each in trials}
    for state, faces in (("finished", look["color"]), ("pruned", "none")):
        shown = [trial for trial in trials if trial.state == state and trial.number in heights]
        colours = {"facecolors": faces, "edgecolors": look["color"]}
        places = [x[each.number] for each in shown], [heights[each.number] for each in shown]
        axes.scatter(*places, s=22, marker=look["marker"], **colours)
    nothing = [x[each.number] for each in trials if each.loss == math.inf]
    at_the_edge = axes.get_xaxis_transform()
    axes.scatter(nothing, [0.0] * len(nothing), s=18, marker="x", color=SOFT, transform=at_the_edge, clip_on=False)
