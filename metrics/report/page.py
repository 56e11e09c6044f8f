"""A report as one HTML file: no network, no script, light and dark by the reader's own setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from html import escape
from pathlib import Path

from ..comparison import setting_of
from ..config_file import config_text
from ..names import client_name, read_owners
from ..seeds import Estimate
from ..summary_table import flaw_of
from ..text import UNKNOWN, label, metric_number, short
from .drawn import Drawn
from .learning import worst_clients
from .methods import Method, named

_STYLE = Path(__file__).with_name("page.css")
_EVENTS_SHOWN = 40
_DETAIL = 500  # characters

_ALLOWED = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""No script and nothing from elsewhere, whatever a run's texts hold."""

_FIGURES = {  # title, figure of metrics.seeds, divisor, digits
    "worst 10%": ("worst_10", None),
    "common model": ("global_metric", None),
    "payload MB": ("payload_bytes", 1e6),
    "wire MB": ("wire_bytes", 1e6),
    "TFLOP": ("flops", 1e12),
    "PSS MB": ("clients_pss", 1e6),
    "CPU s": ("clients_cpu_s", 1.0),
    "wall s": ("wall_s", 1.0),
    "virtual s": ("virtual_s", 1.0),
    "waited %": ("waited_share", 0.01),
}


def page(methods: Sequence[Method], together: Sequence[Drawn], each: Sequence[tuple[Method, list[Drawn]]]) -> str:
    """``together`` compares the methods, ``each`` are the figures of one method's first run."""
    title = methods[0].name if len(methods) == 1 else f"{len(methods)} methods"
    parts = [_header(methods, title), _results(methods), *map(_figure, together), _worst(methods)]
    for method, figures in each:
        if figures:
            heading = f"<h2>{escape(method.name)}</h2>" if len(methods) > 1 else ""
            parts.append(f"<section>{heading}{''.join(map(_figure_inside, figures))}</section>")
    if len(each) < len(methods):
        parts.append(f"<p class=note>Graphs and waiting are shown of the first {len(each)} methods.</p>")
    parts += [_events(methods), _configuration(methods)]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_ALLOWED}">\n'
        f"<title>{escape(title)}: report of a run</title>\n<style>\n{_STYLE.read_text()}</style>\n</head>\n<body>\n"
        f"<main>\n{chr(10).join(filter(None, parts))}\n</main>\n</body>\n</html>\n"
    )


def _header(methods: Sequence[Method], title: str) -> str:
    runs = [run for method in methods for run in method.group.runs]
    clients = " / ".join(sorted({str(run.clients) for run in runs}, key=int))
    rounds = " / ".join(sorted({str(run.rounds) for run in runs}, key=int))
    seeds = max(len(method.folders) for method in methods)
    data = methods[0].reader.config.get("data", {}).get("dataset", "")
    bad = [f"{run.name} (seed {run.seed}): {run.status}" for run in runs if run.status != "finished"]
    flawed = [f"{run.name} (seed {run.seed}): {run.divergence}" for run in runs if run.divergence]
    facts = [f"{clients} clients", f"{rounds} rounds", f"{seeds} seed{'s' if seeds > 1 else ''}", f"data: {data}"]
    warning = f"<p class=warning>Not all is finished: {escape('; '.join(bad))}.</p>" if bad else ""
    warning += f"<p class=warning>Finished, but {escape('; '.join(flawed))}.</p>" if flawed else ""
    when = f"written {datetime.now():%Y-%m-%d %H:%M}"
    return f"<header><h1>{escape(title)}</h1><p>{escape(' · '.join([*facts, when]))}</p>{warning}</header>"


def _results(methods: Sequence[Method]) -> str:
    figures = {name: spec for name, spec in _FIGURES.items() if any(m.group.estimate(spec[0]) for m in methods)}
    metrics = " / ".join(sorted({method.metric_label for method in methods}))
    head = "".join(f"<th>{escape(name)}</th>" for name in ["method", f"{metrics} ± s.e.", *figures])
    body = ""
    for method in methods:
        cells = [_metric(method), *(_number(method, *spec) for spec in figures.values())]
        body += f'<tr><th scope="row"><i style="background:var(--c{method.number % 8})"></i>{escape(method.name)}'
        body += f" ({escape(flaw)})" if (flaw := flaw_of(method.group)) else ""
        body += "</th>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    over = "runs with different seeds" if any(len(method.folders) > 1 for method in methods) else "clients"
    return (
        f"<section><h2>Results</h2><div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"</div><p class=note>±: standard error over {over}. 1 MB = 10<sup>6</sup> bytes. TFLOP, PSS and CPU are sums "
        "over clients.</p></section>"
    )


def _metric(method: Method) -> str:
    estimate, run = method.group.estimate("test_metric"), method.run
    if estimate is None or run.final is None:
        return UNKNOWN
    error = estimate.standard_error if len(method.group.runs) > 1 else run.final.standard_error
    return f"<b>{metric_number(method.run.metric, estimate.mean)}</b>" + (
        "" if math.isnan(error) else f" ± {metric_number(method.run.metric, error)}"
    )


def _number(method: Method, figure: str, unit: float | None) -> str:
    estimate: Estimate | None = method.group.estimate(figure)
    if estimate is None:
        return UNKNOWN
    if unit is None:
        return metric_number(method.run.metric, estimate.mean)
    return short(estimate.mean / unit)


def _figure(drawn: Drawn) -> str:
    return f"<section>{_figure_inside(drawn, 'h2')}</section>"


def _figure_inside(drawn: Drawn, heading: str = "h3") -> str:
    return (
        f'<figure id="{escape(drawn.name)}"><{heading}>{escape(drawn.title)}</{heading}>{drawn.inline_svg()}'
        f"<figcaption>{escape(drawn.caption)}</figcaption></figure>"
    )


def _worst(methods: Sequence[Method]) -> str:
    lines = worst_clients(methods)
    if not lines:
        return ""
    rows = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in lines)
    return (
        "<section><h3>Clients that fare worst</h3><div class=wide><table class=text><thead><tr><th>method</th>"
        f"<th>client: test metric, the worst first</th></tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _events(methods: Sequence[Method]) -> str:
    rows, total = "", 0
    for method in methods:
        events, nodes = method.reader.events, method.reader.nodes
        others, owners = nodes[nodes.role != "client"], read_owners(method.folders[0])
        names = dict(zip(others.node, named(others), strict=True))
        total += len(events)
        for event in events.head(_EVENTS_SHOWN).itertuples():
            who = names.get(event.node, client_name(event.node, owners))
            when = [f"{event.wall_s:.2f}", "" if math.isnan(event.virtual_s) else f"{event.virtual_s:.2f}"]
            cells = [method.name, *when, who, label(event.kind), _beginning(event.detail)]
            rows += "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
    head = "".join(f"<th>{name}</th>" for name in ("method", "wall s", "virtual s", "who", "what", "detail"))
    more = f"<p class=note>{total} events; at most {_EVENTS_SHOWN} of each first run are shown.</p>"
    return (
        f"<section><h2>Events</h2><div class=wide><table class=text><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{more}</section>"
    )


def _beginning(text: str) -> str:
    first = text[:_DETAIL].partition("\n")[0]
    return first if len(first) < _DETAIL else f"{first}…"


def _configuration(methods: Sequence[Method]) -> str:
    blocks = ""
    for method in methods:
        text = config_text(method.folders[0])
        seeds = ", ".join(str(run.seed) for run in method.group.runs)
        runs = ", ".join(str(folder) for folder in method.folders)
        blocks += (
            f"<details><summary>{escape(method.name)}</summary><p class=note>Seeds: {escape(seeds)}. "
            f"Folders: {escape(runs)}.</p><pre>{escape(text)}</pre></details>"
        )
    return (
        "<section><h2>Configuration, and how to repeat it</h2><p>Each block is complete. Saved as "
        "<code>config.toml</code>, it gives the same models and the same bytes again, to the bit:</p>"
        f"<pre>sheafgossip run config.toml</pre>{_differences(methods)}{blocks}</section>"
    )


def _differences(methods: Sequence[Method]) -> str:
    configs = [setting_of(method.reader.config) for method in methods]
    keys = dict.fromkeys(key for config in configs for key in config)
    differing = [key for key in keys if len({str(config.get(key, "–")) for config in configs}) > 1]
    if len(methods) < 2 or not differing:
        return ""
    head = "".join(f"<th>{escape(key)}</th>" for key in differing)
    rows = "".join(
        f'<tr><th scope="row">{escape(method.name)}</th>'
        + "".join(f"<td>{escape(str(config.get(key, '–')))}</td>" for key in differing)
        + "</tr>"
        for method, config in zip(methods, configs, strict=True)
    )
    return (
        f"<h3>Keys that differ</h3><div class=wide><table class=text><thead><tr><th>method</th>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )
