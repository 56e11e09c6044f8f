"""Pictures of what a part's runs kept: clients as points of a plane, and how a server has related them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...metrics import open_run
from ...metrics.store import RunFolderError
from ...topology.picture import COLOURS, MARKERS, legend_below, literal, new_figure
from .folders import slug
from .part_figures import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

_MOST_ROUNDS = 4  # of a run, the last with state


def draw_states(what: str, runs: Sequence[tuple[str, Path]], title: str, stem: str, out: Path) -> list[Path]:
    """Writes STEM-... .csv, .svg and .png of ``runs``, (name, folder) each. ``what`` is "relations": the picture of a
    run's report; "models": those of the clients; or an array that the server kept, a row or several a client. A name
    behind " by ", as in "models by community", is an array of the server's that tells the colours, in place of groups
    of clients with other data. Returns the files, none where no run kept it."""
    if what == "relations":
        return [path for name, folder in runs for path in _draw_relations(f"{stem}-{slug(name)}", folder, out)]
    shown = _points(what, runs)
    if shown is None:
        return []
    return save(shown, partial(_scatter, shown, what), f"{title}: {what}", out / f"{stem}-{slug(what)}")


def plane(points: np.ndarray) -> np.ndarray:
    """Returns (n, 2) of (n, f): the points themselves where f is 2, else where t-SNE puts them."""
    if points.shape[1] == 2:
        return points
    from sklearn.manifold import TSNE

    tsne = TSNE(init="pca", random_state=0, perplexity=min(30.0, (len(points) - 1) / 3))
    return tsne.fit_transform(points.astype(np.float32))


def _draw_relations(stem: str, folder: Path, out: Path) -> list[Path]:
    from ...metrics.report.methods import methods_of
    from ...metrics.report.relations import relations

    files = [path for drawn in relations(methods_of([folder])[0]) for path in drawn.save(out)]
    return [path.replace(path.with_name(f"{stem}-{path.name}")) for path in files]


def _points(what: str, runs: Sequence[tuple[str, Path]]) -> DataFrame | None:
    """Returns run, round, client, x, y, group; several points a client where the server kept several rows."""
    import pandas

    name, _, by = what.partition(" by ")
    frames = []
    for run, folder in runs:
        reader = open_run(folder)
        nodes = reader.nodes
        clients, server = nodes.node[nodes.role == "client"].tolist(), nodes.node[nodes.role == "server"].max()
        told = "".join(reader.sql("SELECT value FROM meta WHERE key = 'groups'").value)
        for number in [each for each in reader.state_rounds if each][-_MOST_ROUNDS:]:
            with suppress(RunFolderError, KeyError, ValueError):  # it has no such array, or models of several sizes
                state = reader.state(number)
                rows = _rows(name, state, clients, server)
                groups = np.asarray(state[server][by] if by else (told.split(",") if told else [""] * len(rows)))
                client, row = np.nonzero(np.isfinite(rows).all(axis=2))
                if len(client) > 2:
                    places = dict(zip("xy", plane(rows[client, row]).T, strict=True))
                    about = {"run": run, "round": number, "client": client, **places, "group": groups[client]}
                    frames.append(pandas.DataFrame(about))
    return pandas.concat(frames) if frames else None


def _rows(name: str, state: Mapping[int, Mapping[str, np.ndarray]], clients: list[int], server: int) -> np.ndarray:
    """Returns (clients, rows of each, f). Raises KeyError, ValueError."""
    found = np.stack([state[k]["theta"] for k in clients]) if name == "models" else state[server][name]
    return found.reshape(len(clients), -1, found.shape[-1])


def _scatter(shown: DataFrame, what: str) -> Figure:
    panels = shown.groupby(["run", "round"], sort=False)
    columns = min(len(panels), 4)
    figure, axes = new_figure(3.6 * columns + 0.6, 3.6 * -(-len(panels) // columns) + 1, columns, len(panels))
    groups = sorted(shown.group.unique().tolist(), key=lambda group: (len(str(group)), str(group)))
    for each, ((run, number), points) in zip(axes, panels, strict=True):
        each.set_title(literal(f"{run}, round {number}"), fontsize=9.5)
        each.set(xticks=[], yticks=[])
        for place, group in enumerate(groups):
            own, label = points[points.group == group], literal(f"{what.partition(' by ')[2] or 'group'} {group}")
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place // len(COLOURS) % len(MARKERS)]
            each.scatter(own.x, own.y, color=colour, marker=marker, s=26, label=label)
    if len(groups) > 1:
        legend_below(figure, axes[0])
    return figure


def communities(folder: Path) -> list[int]:
    """Returns how many communities of several clients a server has found, in each round with state; of those who took
    part in the round."""
    reader, found = open_run(folder), []
    traffic = reader.traffic
    for number in reader.state_rounds[1:]:
        state = reader.state(number)
        if "community" not in (kept := state[max(state)]):
            return []
        heard = traffic[(traffic["round"] == number) & (traffic.dst == max(state))].src.unique()
        found.append(int((np.unique(kept["community"][heard], return_counts=True)[1] > 1).sum()))
    return found
