"""A report as one HTML file that needs no network: tables that stand without a script, and charts that answer to the
pointer; light and dark by the reader's own setting."""

import base64
import hashlib
import math
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from ..comparison import caption_of, columns_of, size_of, value_text
from ..config_file import config_text, differing, setting_of
from ..events import GONE, THERE, Event, who_of
from ..figures import SCENARIO
from ..reader import client_name, read_owners
from ..text import UNKNOWN, label, news, plain
from ..twins import Twins, cells, differences as differences_of, figures as figures_of, remarks, use_of, verdict
from .chart import LOOK, PALETTE, VERSION, Chart, compact
from .charts import bytes_by_level, curves, each_client, memory_over_time, own_curves, spread
from .methods import Method, methods_of
from .of_one import graph, map_norms, memory_by_process, presence
from .relations import relations
from .waits import planned, timeline, waiting

_HERE = Path(__file__).parent
_ONE_BY_ONE = 12  # methods of which graph, maps, waiting and processes are shown; more make a page large
_WORST = 5  # clients
_MOST_BESIDES = 12  # methods of which each has a column of the keys that differ
_EVENTS_SHOWN = 40
_DETAIL = 500  # characters
_COLOURS = " ".join(f"--c{number}: {colour};" for number, colour in enumerate(PALETTE))
_OF_ONE = (graph, map_norms, relations, presence, timeline, planned, waiting, memory_by_process)


def write_report(folders: Sequence[Path], page_file: Path, figures: Path | None = None) -> list[Path]:
    """Writes the page, and into ``figures`` all charts as SVG, PNG, PDF and CSV. Raises RunFolderError and OSError."""
    methods, files = methods_of(folders), [page_file]
    for folder in filter(None, (page_file.parent, figures)):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        news(f"reading {len(methods)} method{'s' if len(methods) > 1 else ''}")
        together, each = charts_of(methods)
        news("writing the page")
        page_file.write_text(page(methods, together, each), encoding="utf-8")
        if figures is not None:
            every = [*together, *(chart for _, own in each for chart in own)]
            for number, chart in enumerate(every, 1):
                news(f"writing figure {number} of {len(every)}")
                files += chart.save(figures)
    finally:
        news()
    return files


class Part(NamedTuple):
    """What makes some of the charts: of all methods together, or of one method's first run."""

    name: str
    of: Method | None
    make: Callable[[], Iterable[Chart]]


def parts_of(methods: Sequence[Method]) -> list[Part]:
    same = [[each for each in methods if each.run.metric == metric] for metric in ("accuracy", "mse")]
    together = [(f"{make.__name__} {alike[0].run.metric}", make, alike)
                for make in (curves, spread, each_client) for alike in filter(None, same)]  # fmt: skip
    together += [(make.__name__, make, list(methods)) for make in (own_curves, bytes_by_level, memory_over_time)]
    return [Part(name, None, partial(make, of)) for name, make, of in together] + [
        Part(f"{make.__name__} {method.number}", method, partial(make, method))
        for method in methods[:_ONE_BY_ONE] for make in _OF_ONE
    ]  # fmt: skip


def charts_of(methods: Sequence[Method]) -> tuple[list[Chart], list[tuple[Method, list[Chart]]]]:
    """Returns those that compare the methods, and those of each one's first run."""
    return arranged(methods, [(part, list(part.make())) for part in parts_of(methods)])


def arranged(
    methods: Sequence[Method], made: Iterable[tuple[Part, Sequence[Chart]]]
) -> tuple[list[Chart], list[tuple[Method, list[Chart]]]]:
    together, each = list[Chart](), {method.number: list[Chart]() for method in methods[:_ONE_BY_ONE]}
    for part, charts in made:
        (together if part.of is None else each[part.of.number]).extend(charts)
    return together, [(methods[number], charts) for number, charts in each.items()]


def page(methods: Sequence[Method], together: Sequence[Chart], each: Sequence[tuple[Method, list[Chart]]]) -> str:
    charts = [*together, *(chart for _, own in each for chart in own)]
    return document("page.html", charts, **contents(methods, together, each))


def contents(
    methods: Sequence[Method], together: Sequence[Chart], each: Sequence[tuple[Method, list[Chart]]]
) -> dict[str, Any]:
    """Returns what page.html shows."""
    runs = [run for method in methods for run in method.runs]
    places = {Path(run.folder).resolve().parent.name for run in runs}
    several = f"{len(methods)} methods" if len(places) > 1 else f"{places.pop()}: {len(methods)} methods"
    title = several if len(methods) > 1 else methods[0].name
    seeds = max(len(method.runs) for method in methods)
    data = methods[0].reader.config.get("data", {}).get("dataset", "")
    named_runs = [(f"{run.name} (seed {run.seed})", run) for run in runs]
    unfinished = "; ".join(f"{name}: {run.status}" for name, run in named_runs if run.status != "finished")
    flawed = "; ".join(f"{name}: {run.divergence}" for name, run in named_runs if run.divergence)
    facts = [size_of(runs, " · "), f"{seeds} seed{'s' if seeds > 1 else ''}", f"data: {data}"]
    figures = columns_of(methods)
    worst = [(method.name, [text]) for method in methods if (text := worst_clients(method, _WORST))]
    own = [(method.name, charts) for method, charts in each if charts]
    graphs = [
        chart.tables["edges"]["round"].nunique() for _, charts in own for chart in charts if "edges" in chart.tables
    ]
    return dict(
        title=title,
        facts=" · ".join([*facts, f"written {datetime.now():%Y-%m-%d %H:%M}"]),
        warnings=[f"Not all is finished: {unfinished}."] * bool(unfinished)
        + [f"Finished, but {flawed}."] * bool(flawed),
        results={
            "columns": [" ".join(name.split()) for name in figures],
            "rows": [(each, each.flaw, [each.text(figure) for figure in figures.values()]) for each in methods],
            "note": caption_of(methods, figures.values()),
        },
        together=together,
        worst={"name": "worst clients", "columns": ["method", "client: test metric, the worst first"], "rows": worst},
        faults=_faults(methods),
        planned=_planned([method for method, _ in each]),
        each_method=own,
        left_out=len(methods) - len(each),
        frames=max(graphs, default=0),
        events=_events(methods),
        **_configuration(methods),
    )


def document(template: str, charts: Sequence[Chart], title: str, *, live: bool = False, **parts: Any) -> str:
    """Returns a whole page that holds the charts, of a template in this folder. One that is ``live`` asks where it came
    from for what has changed."""
    found = {"": LOOK} | {chart.name: chart.as_dict() for chart in charts}
    text = _rendered(
        template,
        title=title,
        allowed=policy(live=live),
        style=Markup(f":root {{ {_COLOURS} }}\n" + (_HERE / "page.css").read_text()),
        script=Markup("@SCRIPT@"),
        charts=Markup(base64.b64encode(zlib.compress(compact(found).encode(), 9)).decode()),
        live=live,
        **parts,
    )
    before, _, after = plain(text).rpartition("@SCRIPT@")  # what a run's texts say stands before
    return before + _scripts() + after


@cache
def policy(*, live: bool = False) -> str:
    script = base64.b64encode(hashlib.sha256(_scripts().encode()).digest()).decode()
    more = "; connect-src 'self'" * live
    return f"default-src 'none'; script-src 'sha256-{script}'; style-src 'unsafe-inline'; img-src data:{more}"


def main_of(template: str, **parts: Any) -> str:
    """Returns what stands inside of <main>, for a page that is live."""
    return plain(_rendered(template, **parts)).partition("<main>\n")[2].partition("</main>")[0]


def _rendered(template: str, **parts: Any) -> str:
    return _environment().get_template(template).render(**parts)


@cache
def _environment() -> Environment:
    return Environment(loader=FileSystemLoader(_HERE), autoescape=True, trim_blocks=True)


@cache
def _scripts() -> str:
    """Vega's, and ours."""
    import vl_convert

    vega = vl_convert.javascript_bundle(None, vl_version=VERSION)  # type: ignore[arg-type]
    text = vega + "\n" + (_HERE / "page.js").read_text()
    return text.replace("</script", "<\\/script").replace("\r", "")


def _planned(methods: Sequence[Method]) -> dict[str, Any]:
    twins = [(method, method.twin) for method in methods if method.twin]
    rows, names, said, largest = [], list[str](), ["Planned / measured, in seconds on the wall clock."], []
    for method, twin in twins:
        shown = {name: " / ".join(cells(seconds)[:2]) for name, seconds in figures_of(twin)}
        names = names or list(shown)
        rows.append((method.name, [shown.get(name, UNKNOWN) for name in names]))
        off = [(name, cells(seconds, relative=False)) for name, seconds in differences_of(twin)]
        columns = ["", "planned s", "measured s", "difference s"]
        largest.append({"name": f"Largest differences: {method.name}", "columns": columns, "rows": off})
        said.append(f"{method.name}: {use_of(twin)}" if len(twins) > 1 else use_of(twin))
    several = Twins(tuple(twin for _, twin in twins))
    said += [*([verdict(several)] if len(twins) > 1 else []), *(remarks(several) if twins else [])]
    return {
        "name": "planned and measured",
        "columns": ["method", *names],
        "rows": rows,
        "said": said,
        "largest": largest,
    }


def worst_clients(method: Method, count: int) -> str:
    """Returns "client: metric, ...", the worst first; with the seed where there are several."""
    accuracy = method.run.metric == "accuracy"
    latest = method.latest_metric().sort_values("test_metric", ascending=accuracy, kind="stable").head(count)
    return ", ".join(
        f"{row.owner or row.client}{f' (seed {row.seed})' if len(method.runs) > 1 else ''}: "
        f"{method.scale[0] * row.test_metric:{'.1f' if accuracy else '.4g'}}"
        for row in latest.itertuples(index=False)
    )


def _faults(methods: Sequence[Method]) -> dict[str, Any]:
    """What slow clients, links and faults did in the first run of each method; figures that none has are left out."""
    found = [(method.name, {figure: line[1] for figure in SCENARIO if (line := figure.line(method.run))})
             for method in methods]  # fmt: skip
    shown = [figure for figure in SCENARIO if any(figure in own for _, own in found)]
    columns = ["method", *(f"{figure.title}{f', {figure.unit.name}' * bool(figure.unit.name)}" for figure in shown)]
    rows = [(name, [own.get(figure, "0" if figure.hide == "zero" else UNKNOWN) for figure in shown])
            for name, own in found]  # fmt: skip
    return {"name": "slow clients and faults", "columns": columns, "rows": rows if shown else []}


def _events(methods: Sequence[Method]) -> dict[str, Any]:
    """Those of a cause, such as the same warning of several clients, share a row; comings and goings do not."""
    rows = []
    for method in methods:
        owners, alike = read_owners(method.run.folder), defaultdict[Any, list[tuple[Event, float]]](list)
        for row in method.reader.events.itertuples():
            who = method.others.get(row.node, client_name(row.node, owners))
            event = Event(row.wall_s, row.node, label(row.kind), row.detail[:_DETAIL].partition("\n")[0], who)
            if event.kind not in ("start", "finish"):
                alike[row if event.kind in (*GONE, *THERE) else event.pattern].append((event, row.virtual_s))
        for (first, virtual_s), *others in list(alike.values())[:_EVENTS_SHOWN]:
            when = [f"{first.wall_s:.2f}", "" if math.isnan(virtual_s) else f"{virtual_s:.2f}"]
            detail = first.detail + ("…" if len(first.detail) == _DETAIL else "")
            who = who_of([event for event, _ in others], first)
            rows.append((method.name, [*when, who, first.kind, detail]))
    note = f"Of each first run the first {_EVENTS_SHOWN}; of those that are alike the first."
    columns = ["method", "wall s", "virtual s", "who", "what", "detail"]
    return {"name": "events", "columns": columns, "rows": rows, "note": note if rows else "None but starts and ends."}


def _configuration(methods: Sequence[Method]) -> dict[str, Any]:
    settings = [setting_of(method.reader.config) for method in methods]
    keys = differing(settings)
    cells = [(key, [value_text(own.get(key)) for own in settings]) for key in keys]
    columns, rows = ["key", *(method.name for method in methods)], cells
    if len(methods) > _MOST_BESIDES:
        columns = ["method", *keys]
        rows = [(method.name, [own[number] for _, own in cells]) for number, method in enumerate(methods)]
    blocks = [
        {
            "name": method.name,
            "seeds": ", ".join(str(run.seed) for run in method.runs),
            "folders": ", ".join(str(run.folder) for run in method.runs),
            "text": config_text(method.run.folder),
        }
        for method in methods
    ]
    return {
        "differing": {"name": "keys that differ", "columns": columns, "rows": rows if keys else []},
        "blocks": blocks,
    }
