"""A report as one HTML file: no network, no script, light and dark by the reader's own setting."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path

from ..config_file import config_text, differing, setting_of
from ..reader import client_name, read_owners
from ..tables import caption_of, columns_of, size_of, value_text
from ..text import label
from .drawn import Drawn
from .learning import worst_clients
from .methods import Method, named

_STYLE = Path(__file__).with_name("page.css")
_EVENTS_SHOWN = 40
_DETAIL = 500  # characters

_ALLOWED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""No script and nothing from elsewhere, whatever a run's texts hold."""


def page(methods: Sequence[Method], together: Sequence[Drawn], each: Sequence[tuple[Method, list[Drawn]]]) -> str:
    """``together`` compares the methods, ``each`` are the figures of one method's first run."""
    title = methods[0].name if len(methods) == 1 else f"{len(methods)} methods"
    parts = [_header(methods, title), _results(methods)]
    parts += [f"<section>{_figure(drawn, 'h2')}</section>" for drawn in together]
    if rows := [_row(name, [text]) for name, text in worst_clients(methods)]:
        table = _table(["method", "client: test metric, the worst first"], rows)
        parts.append(f"<section><h3>Clients that fare worst</h3>{table}</section>")
    for method, figures in each:
        if figures:
            heading = f"<h2>{escape(method.name)}</h2>" if len(methods) > 1 else ""
            parts.append(f"<section>{heading}{''.join(map(_figure, figures))}</section>")
    if len(each) < len(methods):
        parts.append(f"<p class=note>Graphs and waiting are shown of the first {len(each)} methods.</p>")
    parts += [_events(methods), _configuration(methods)]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_ALLOWED}">\n'
        f"<title>{escape(title)}: report of a run</title>\n<style>\n{_STYLE.read_text()}</style>\n</head>\n<body>\n"
        f"<main>\n{chr(10).join(parts)}\n</main>\n</body>\n</html>\n"
    )


def _header(methods: Sequence[Method], title: str) -> str:
    runs = [run for method in methods for run in method.group.runs]
    seeds = max(len(method.folders) for method in methods)
    data = methods[0].reader.config.get("data", {}).get("dataset", "")
    bad = [f"{run.name} (seed {run.seed}): {run.status}" for run in runs if run.status != "finished"]
    flawed = [f"{run.name} (seed {run.seed}): {run.divergence}" for run in runs if run.divergence]
    facts = [size_of(runs, " · "), f"{seeds} seed{'s' if seeds > 1 else ''}", f"data: {data}"]
    warning = f"<p class=warning>Not all is finished: {escape('; '.join(bad))}.</p>" if bad else ""
    warning += f"<p class=warning>Finished, but {escape('; '.join(flawed))}.</p>" if flawed else ""
    when = f"written {datetime.now():%Y-%m-%d %H:%M}"
    return f"<header><h1>{escape(title)}</h1><p>{escape(' · '.join([*facts, when]))}</p>{warning}</header>"


def _results(methods: Sequence[Method]) -> str:
    groups = [method.group for method in methods]
    figures = columns_of(groups)
    rows = [_row(method.name, (method.group.text(figure) for figure in figures.values()), method) for method in methods]
    table = _table(["method", *(" ".join(title.split()) for title in figures)], rows, kind="")
    note = escape(caption_of(groups, figures.values())).replace("10^6", "10<sup>6</sup>").replace("\n", "<br>")
    return f"<section><h2>Results</h2>{table}<p class=note>{note}</p></section>"


def _table(head: Sequence[str], rows: Iterable[str], kind: str = " class=text") -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    return f"<div class=wide><table{kind}><thead><tr>{titles}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def _row(name: str, cells: Iterable[str], method: Method | None = None) -> str:
    """With ``method`` its colour stands before its name, and its flaw behind it."""
    title = escape(name)
    if method is not None:
        title = f'<i style="background:var(--c{method.number % 8})"></i>{title}'
        title += f" ({escape(method.group.flaw)})" if method.group.flaw else ""
    return f'<tr><th scope="row">{title}</th>{_cells(cells)}</tr>'


def _cells(texts: Iterable[str]) -> str:
    return "".join(f"<td>{escape(text)}</td>" for text in texts)


def _figure(drawn: Drawn, heading: str = "h3") -> str:
    return (
        f'<figure id="{escape(drawn.name)}"><{heading}>{escape(drawn.title)}</{heading}>{drawn.inline_svg()}'
        f"<figcaption>{escape(drawn.caption)}</figcaption></figure>"
    )


def _events(methods: Sequence[Method]) -> str:
    rows, total = [], 0
    for method in methods:
        events, nodes = method.reader.events, method.reader.nodes
        others, owners = nodes[nodes.role != "client"], read_owners(method.folders[0])
        names = dict(zip(others.node, named(others), strict=True))
        total += len(events)
        for event in events.head(_EVENTS_SHOWN).itertuples():
            who = names.get(event.node, client_name(event.node, owners))
            when = [f"{event.wall_s:.2f}", "" if math.isnan(event.virtual_s) else f"{event.virtual_s:.2f}"]
            detail = event.detail[:_DETAIL].partition("\n")[0]
            detail += "…" if len(detail) == _DETAIL else ""
            rows.append(f"<tr>{_cells([method.name, *when, who, label(event.kind), detail])}</tr>")
    table = _table(["method", "wall s", "virtual s", "who", "what", "detail"], rows)
    more = f"<p class=note>{total} events; at most {_EVENTS_SHOWN} of each first run are shown.</p>"
    return f"<section><h2>Events</h2>{table}{more}</section>"


def _configuration(methods: Sequence[Method]) -> str:
    settings = [setting_of(method.reader.config) for method in methods]
    blocks = ""
    if keys := differing(settings):
        named_settings = zip(methods, settings, strict=True)
        rows = [_row(each.name, (value_text(own.get(key)) for key in keys)) for each, own in named_settings]
        blocks = f"<h3>Keys that differ</h3>{_table(['method', *keys], rows)}"
    for method in methods:
        seeds = ", ".join(str(run.seed) for run in method.group.runs)
        runs = ", ".join(str(folder) for folder in method.folders)
        blocks += (
            f"<details><summary>{escape(method.name)}</summary><p class=note>Seeds: {escape(seeds)}. "
            f"Folders: {escape(runs)}.</p><pre>{escape(config_text(method.folders[0]))}</pre></details>"
        )
    return (
        "<section><h2>Configuration, and how to repeat it</h2><p>Each block is complete. Saved as "
        "<code>config.toml</code>, it gives the same models and the same bytes again, to the bit:</p>"
        f"<pre>sheafgossip run config.toml</pre>{blocks}</section>"
    )
