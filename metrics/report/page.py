"""A report as one HTML file: no network, no script, light and dark by the reader's own setting."""

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import datetime
from html import escape
from pathlib import Path

import matplotlib

from ...topology.picture import LOOK
from ..comparison import caption_of, columns_of, size_of, value_text
from ..config_file import config_text, differing, setting_of
from ..reader import client_name, read_owners
from ..text import UNKNOWN, label, news, plain
from ..twins import Twins, cells, differences as differences_of, figures as figures_of, remarks, use_of, verdict
from .charts import (
    bytes_by_level,
    curves,
    graph,
    map_norms,
    memory_by_process,
    memory_over_time,
    own_curves,
    planned,
    presence,
    spread,
    waiting,
)
from .drawn import Drawn, Method, methods_of
from .relations import relations

_ONE_BY_ONE = 6  # methods of which graph, maps, waiting and processes are shown; more make a page slow
_WORST = 5  # clients
_EVENTS_SHOWN = 40
_DETAIL = 500  # characters
_ALLOWED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"  # no script, whatever a run's texts hold


def write_report(folders: Sequence[Path], page_file: Path, figures: Path | None = None) -> list[Path]:
    """Writes the page, and into ``figures`` all figures as SVG, PNG, PDF and CSV. Raises RunFolderError and OSError."""
    methods, files = methods_of(folders), [page_file]
    for folder in filter(None, (page_file.parent, figures)):
        folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(LOOK | {"axes.grid": True}), ExitStack() as stack:
        stack.callback(news)
        news(f"drawing {len(methods)} method{'s' if len(methods) > 1 else ''}")
        same = [[each for each in methods if each.run.metric == metric] for metric in ("accuracy", "mse")]
        together = [drawn for draw in (curves, spread) for alike in filter(None, same) for drawn in draw(alike)]
        together += [drawn for draw in (own_curves, bytes_by_level, memory_over_time) for drawn in draw(methods)]
        of_one = (graph, map_norms, relations, presence, planned, waiting, memory_by_process)
        each = [(method, [drawn for draw in of_one for drawn in draw(method)]) for method in methods[:_ONE_BY_ONE]]
        news("writing the page")
        page_file.write_text(plain(page(methods, together, each)), encoding="utf-8")
        if figures is not None:
            all_drawn = [*together, *(drawn for _, own in each for drawn in own)]
            for number, drawn in enumerate(all_drawn, 1):
                news(f"writing figure {number} of {len(all_drawn)}")
                files += drawn.save(figures)
    return files


def page(methods: Sequence[Method], together: Sequence[Drawn], each: Sequence[tuple[Method, list[Drawn]]]) -> str:
    """``together`` compares the methods, ``each`` are the figures of one method's first run."""
    title = methods[0].name if len(methods) == 1 else f"{len(methods)} methods"
    parts = [_header(methods, title), _results(methods)]
    parts += [f"<section>{html_figure(drawn, 'h2')}</section>" for drawn in together]
    if rows := [html_row(escape(method.name), [text]) for method in methods if (text := worst_clients(method, _WORST))]:
        table = html_table(["method", "client: test metric, the worst first"], rows)
        parts.append(f"<section><h3>Clients that fare worst</h3>{table}</section>")
    parts.append(_planned([method for method, _ in each]))
    for method, figures in each:
        if figures:
            heading = f"<h2>{escape(method.name)}</h2>" if len(methods) > 1 else ""
            parts.append(f"<section>{heading}{''.join(map(html_figure, figures))}</section>")
    if len(each) < len(methods):
        parts.append(f"<p class=note>Graphs and waiting are shown of the first {len(each)} methods.</p>")
    parts += [_events(methods), _configuration(methods)]
    return document(f"{title}: report of a run", parts)


def document(title: str, parts: Sequence[str]) -> str:
    """Returns a whole page; the parts are HTML, the title text."""
    style = Path(__file__).with_name("page.css").read_text()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_ALLOWED}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<main>\n{chr(10).join(parts)}\n</main>\n</body>\n</html>\n"
    )


def _header(methods: Sequence[Method], title: str) -> str:
    runs = [run for method in methods for run in method.runs]
    seeds = max(len(method.runs) for method in methods)
    data = methods[0].reader.config.get("data", {}).get("dataset", "")
    named_runs = [(f"{run.name} (seed {run.seed})", run) for run in runs]
    unfinished = "; ".join(f"{name}: {run.status}" for name, run in named_runs if run.status != "finished")
    flawed = "; ".join(f"{name}: {run.divergence}" for name, run in named_runs if run.divergence)
    facts = [size_of(runs, " · "), f"{seeds} seed{'s' if seeds > 1 else ''}", f"data: {data}"]
    facts.append(f"written {datetime.now():%Y-%m-%d %H:%M}")
    warning = f"<p class=warning>Not all is finished: {escape(unfinished)}.</p>" if unfinished else ""
    warning += f"<p class=warning>Finished, but {escape(flawed)}.</p>" if flawed else ""
    return f"<header><h1>{escape(title)}</h1><p>{escape(' · '.join(facts))}</p>{warning}</header>"


def _results(methods: Sequence[Method]) -> str:
    figures, rows = columns_of(methods), []
    for method in methods:
        title = f'<i style="background:var(--c{method.number % 8})"></i>{escape(method.name)}'
        title += f" ({escape(method.flaw)})" if method.flaw else ""
        rows.append(html_row(title, map(method.text, figures.values())))
    table = html_table(["method", *(" ".join(title.split()) for title in figures)], rows, kind="")
    note = escape(caption_of(methods, figures.values())).replace("10^6", "10<sup>6</sup>").replace("\n", "<br>")
    return f"<section><h2>Results</h2>{table}<p class=note>{note}</p></section>"


def _planned(methods: Sequence[Method]) -> str:
    twins = [(method, method.twin) for method in methods if method.twin]
    if not twins:
        return ""
    rows, names, said, largest = [], list[str](), ["Planned / measured, in seconds on the wall clock."], ""
    columns = "", "planned s", "measured s", "difference s"
    for method, twin in twins:
        shown = {name: " / ".join(cells(seconds)[:2]) for name, seconds in figures_of(twin)}
        names = names or list(shown)
        rows.append(html_row(escape(method.name), [shown.get(name, UNKNOWN) for name in names]))
        off = (html_row(escape(name), cells(seconds, relative=False)) for name, seconds in differences_of(twin))
        summary = f"<summary>Largest differences: {escape(method.name)}</summary>"
        largest += f"<details>{summary}{html_table(columns, off, kind='')}</details>"
        said.append(f"{method.name}: {use_of(twin)}" if len(twins) > 1 else use_of(twin))
    several = Twins(tuple(twin for _, twin in twins))
    said += [*([verdict(several)] if len(twins) > 1 else []), *remarks(several)]
    table = html_table(["method", *names], rows, kind="")
    note = f"<p class=note>{'<br>'.join(map(escape, said))}</p>"
    return f"<section><h2>Planned and measured</h2>{table}{note}{largest}</section>"


def worst_clients(method: Method, count: int) -> str:
    """Returns "client: metric, ...", the worst first; with the seed where there are several."""
    accuracy = method.run.metric == "accuracy"
    latest = method.latest_metric().sort_values("test_metric", ascending=accuracy, kind="stable").head(count)
    return ", ".join(
        f"{row.owner or row.client}{f' (seed {row.seed})' if len(method.runs) > 1 else ''}: "
        f"{method.scale[0] * row.test_metric:{'.1f' if accuracy else '.4g'}}"
        for row in latest.itertuples(index=False)
    )


def html_table(head: Sequence[str], rows: Iterable[str], kind: str = " class=text") -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    return f"<div class=wide><table{kind}><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def html_row(title: str, cells: Iterable[str]) -> str:
    """``title`` is HTML, ``cells`` are text."""
    return f'<tr><th scope="row">{title}</th>{_cells(cells)}</tr>'


def _cells(texts: Iterable[str]) -> str:
    return "".join(f"<td>{escape(text)}</td>" for text in texts)


def html_figure(drawn: Drawn, heading: str = "h3") -> str:
    return (
        f'<figure id="{escape(drawn.name)}"><{heading}>{escape(drawn.title)}</{heading}>{drawn.inline_svg()}'
        f"<figcaption>{escape(drawn.caption)}</figcaption></figure>"
    )


def _events(methods: Sequence[Method]) -> str:
    rows, total = [], 0
    for method in methods:
        events, owners = method.reader.events, read_owners(method.run.folder)
        total += len(events)
        for event in events.head(_EVENTS_SHOWN).itertuples():
            who = method.others.get(event.node, client_name(event.node, owners))
            when = [f"{event.wall_s:.2f}", "" if math.isnan(event.virtual_s) else f"{event.virtual_s:.2f}"]
            detail = event.detail[:_DETAIL].partition("\n")[0]
            detail += "…" if len(detail) == _DETAIL else ""
            rows.append(f"<tr>{_cells([method.name, *when, who, label(event.kind), detail])}</tr>")
    table = html_table(["method", "wall s", "virtual s", "who", "what", "detail"], rows)
    more = f"<p class=note>{total} events; at most {_EVENTS_SHOWN} of each first run are shown.</p>"
    return f"<section><h2>Events</h2>{table}{more}</section>"


def _configuration(methods: Sequence[Method]) -> str:
    settings = [setting_of(method.reader.config) for method in methods]
    blocks = ""
    if keys := differing(settings):
        names = [escape(method.name) for method in methods]
        rows = [html_row(name, map(value_text, map(own.get, keys))) for name, own in zip(names, settings, strict=True)]
        blocks = f"<h3>Keys that differ</h3>{html_table(['method', *keys], rows)}"
    for method in methods:
        seeds, folders = (", ".join(str(getattr(run, name)) for run in method.runs) for name in ("seed", "folder"))
        blocks += (
            f"<details><summary>{escape(method.name)}</summary><p class=note>Seeds: {seeds}. "
            f"Folders: {escape(folders)}.</p><pre>{escape(config_text(method.run.folder))}</pre></details>"
        )
    return (
        "<section><h2>Configuration, and how to repeat it</h2><p>Each block is complete. Saved as "
        "<code>config.toml</code>, it gives the same models and the same bytes again, to the bit:</p>"
        f"<pre>sheafgossip run config.toml</pre>{blocks}</section>"
    )
