"""Reports of real runs, as files and in a browser, and what is seen of their making."""

import base64
import json
import re
import shutil
import sqlite3
import time
import xml.etree.ElementTree as ElementTree
import zlib
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import pytest

from foreign import sheafgossip

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
STRAGGLERS = """
clients = 6
rounds = 12
topology.kind = "ring"
data.samples = 400
training.work = "steps"
time = { clock = "virtual", staleness = 2 }
compute.step_s = 0.01
stragglers = { kind = "fixed", fraction = 0.3, factor = 10.0 }
faults = [{ kind = "crash", clients = [1], at_round = 6, restart_after = 2 }]
checkpoints.every = 2
"""
SEEDS = "clients = 5\nrounds = 6\ndata = { samples = 300, rotations = [0, 90] }\n"
COMMANDS = {  # a scenario, and a sweep of two methods, one with a server, over two seeds
    "stragglers": (STRAGGLERS, "run"),
    "sweep": (SEEDS, "sweep", "--grid", "algorithm.name=d-psgd,fedavg", "--seeds", "2"),
}
OF_ALL = {"learning-accuracy", "clients-accuracy", "each-accuracy", "bytes", "overhead", "memory", "graph-1"}
FIGURES = {
    "stragglers": OF_ALL | {"maps-1", "presence-1", "timeline-1", "waiting-1", "waited-for-1"},
    "sweep": OF_ALL | {"graph-2"},
}
TOLD = {
    "stragglers": (
        "Who waited for whom",
        "Who was there",
        "<td>crash</td>",
        "Slow clients and faults",
        "restarts</th>",
    ),
    "sweep": ("2 seeds", "standard error over runs with different seeds", "Seeds: 0, 1.", "[topology]"),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("reports")
    for name, (text, command, *options) in COMMANDS.items():
        (root / f"{name}.toml").write_text(text)
        assert sheafgossip(command, root / f"{name}.toml", *options, "--quiet", "--out", root / name)[0] == 0
        assert sheafgossip("report", root / name, "--out", root / f"{name}.html")[0] == 0
    return {name: root / name for name in COMMANDS}


def charts_in(page):
    packed = re.search(r'id="charts">([^<]+)<', page)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


@pytest.mark.parametrize("name", FIGURES)
def test_a_report_is_one_file_that_needs_nothing_else(folders, name):
    page = folders[name].with_suffix(".html").read_text()
    assert len(page) < 1_500_000
    ours = page.partition('<script type="application/octet-stream"')[0]
    addresses = set(re.findall(r'(?:src|href)="([^"#]+)', ours)) | set(re.findall(r"url\(([^#)]+)", ours))
    assert all(address.startswith("data:") for address in addresses)
    names = re.findall(r'\bid="([^"]+)"', ours)
    assert len(names) == len(set(names))
    charts = charts_in(page)
    assert set(re.findall(r'data-chart="([^"]+)"', ours)) == charts.keys() - {""} >= FIGURES[name]
    assert [part for part in TOLD[name] if part not in page] == []


def test_the_page_holds_the_records_of_the_run(folders):
    charts = charts_in(folders["stragglers"].with_suffix(".html").read_text())
    assert {name for name, chart in charts.items() for table in chart.get("tables", {}).values()
            if None in table.get("node", ())} == set()  # fmt: skip
    with closing(sqlite3.connect(folders["stragglers"] / "run.sqlite")) as records:
        means = records.execute("SELECT round, avg(test_metric) FROM round WHERE node >= 0 GROUP BY round").fetchall()
        sent = dict(records.execute("SELECT round, sum(payload_bytes) FROM traffic GROUP BY round"))
        away = records.execute("SELECT count(*) FROM round WHERE node = 1 AND round BETWEEN 6 AND 7").fetchone()[0]
    curve = charts["learning-accuracy"]["tables"]["curve"]
    assert curve["round"] == [round for round, _ in means]
    assert curve["metric"] == pytest.approx([100 * mean for _, mean in means], rel=1e-5)
    so_far = accumulate(sent.get(round, 0) / 1e6 for round, _ in means)
    assert curve["payload_mb"] == pytest.approx(list(so_far), rel=1e-5)
    graph = charts["graph-1"]["tables"]
    shown = zip(graph["nodes"]["node"], graph["nodes"]["round"], graph["nodes"]["there"], strict=True)
    assert sum(there for node, round, there in shown if node == 1 and 6 <= round <= 7) == away < 2
    kilobytes = zip(graph["edges"]["round"], graph["edges"]["payload_kb"], strict=True)
    assert sum(size for _, size in kilobytes) == pytest.approx(sum(sent.values()) / 1e3, rel=1e-5)
    spans = charts["timeline-1"]["tables"]["spans"]
    waited = [end - begin for begin, end, what in zip(spans["from_s"], spans["to_s"], spans["what"], strict=True)
              if what == "waits"]  # fmt: skip
    assert sum(waited) == pytest.approx(sum(charts["waiting-1"]["tables"]["waiting"]["idle_s"]), rel=1e-4)


def test_figures_come_in_three_formats_with_their_data_and_a_terminal_shows_which(folders, tmp_path):
    words = "report", folders["stragglers"], "--out", tmp_path / "r.html", "--figures", tmp_path
    code, _, seen = sheafgossip(*words, terminal=True)
    count = len(list(tmp_path.glob("*.png")))
    assert code == 0
    assert f"writing figure {count} of {count}" in seen
    assert seen.endswith("\r\033[K")
    for name in FIGURES["stragglers"]:
        files = {path.suffix: path.read_bytes() for path in tmp_path.glob(f"{name}.*")}
        assert set(files) == {".svg", ".png", ".pdf", ".csv"}
        assert files[".png"].startswith(b"\x89PNG")
        assert files[".pdf"].startswith(b"%PDF")
        assert files[".csv"].count(b"\n") > 1
        drawn = [each.attrib.get("d", "") for each in ElementTree.fromstring(files[".svg"]).findall(".//{*}path")]
        assert len([each for each in drawn if each]) > 1, name
        assert "NaN" not in "".join(drawn)


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="it drives the browser")
    if CHROMIUM is None:
        pytest.skip("no Chromium here to open the pages in")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser, folders):
    """Opens a page, and tells at the end what its script or its policy complained of."""
    said, contexts = [], []

    def show(name, **how):
        contexts.append(browser.new_context(**{"viewport": {"width": 1180, "height": 900}} | how))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(folders[name].with_suffix(".html").as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield show
    for context in contexts:
        context.close()
    assert said == []


def until(page, expression, *, within_s=30):
    """wait_for_function needs eval, which the page forbids."""
    deadline = time.monotonic() + within_s
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(20)


def at_half(page, chart):
    """The pointer in the middle of a chart's width."""
    box = page.locator(f"#{chart} svg .background").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(f"#{chart} .told:visible")


def lines(page, chart):
    return page.locator(f"#{chart} .mark-line path").count()


def test_every_chart_is_drawn_and_the_table_chooses_and_sorts_methods(show):
    page = show("sweep")
    for chart in page.locator("figure[data-chart]:visible").all():
        assert chart.locator("svg, canvas").count() == 1, chart.get_attribute("id")
    methods = page.locator("#results tbody tr")
    assert methods.count() == lines(page, "learning-accuracy") == 2
    bars = page.locator("#bytes .mark-rect path")
    assert bars.count() == 2
    page.locator("#results tbody input").first.uncheck()
    until(page, "document.querySelectorAll('#bytes .mark-rect path').length === 1")
    assert lines(page, "learning-accuracy") == 1
    names = methods.evaluate_all("rows => rows.map((row) => row.querySelector('.name').textContent)")
    head = page.locator("#results thead button").first
    head.click()
    head.click()
    sorted_names = methods.evaluate_all("rows => rows.map((row) => row.querySelector('.name').textContent)")
    assert sorted_names == sorted(names, reverse=True)
    page.locator("#method").select_option(index=1)
    page.wait_for_selector("#graph-2 svg")
    assert not page.locator("#graph-1").is_visible()


def test_against_bytes_the_pointer_tells_each_method_at_its_own_nearest_point(show):
    page = show("sweep")
    page.locator("#learning-accuracy select").first.select_option("payload sent by all clients, MB")
    page.locator("#learning-accuracy [name='x scale']").select_option("linear")
    at_half(page, "learning-accuracy")
    told = page.locator("#learning-accuracy .told")
    (x,) = re.fullmatch(r"payload sent by all clients, MB: ([\d.]+)", told.locator("p").text_content()).groups()
    assert told.locator("th").count() >= 1
    curve = charts_in(page.content())["learning-accuracy"]["tables"]["curve"]
    points = list(zip(curve["method"], curve["payload_mb"], curve["metric"], strict=True))
    for row in told.locator("tr").all():
        value, _, place = row.locator("td").all_text_contents()
        shown = row.locator("th").text_content(), float(place.removeprefix("at ") or x), float(value)
        assert shown in [(method, pytest.approx(mb, rel=1e-3), pytest.approx(metric, rel=1e-3))
                         for method, mb, metric in points]  # fmt: skip


@pytest.mark.parametrize("how", [{}, {"color_scheme": "dark"}], ids=str)
def test_a_method_has_one_colour_in_the_table_and_in_every_chart(show, how):
    page = show("sweep", **how)
    chips = page.locator("#results tbody i").evaluate_all("all => all.map((i) => getComputedStyle(i).backgroundColor)")
    assert len(set(chips)) == 2
    for marks, channel in (("#bytes .mark-rect path", "fill"), ("#learning-accuracy .mark-line path", "stroke")):
        drawn = page.locator(marks).evaluate_all(f"all => all.map((path) => getComputedStyle(path).{channel})")
        assert drawn == chips


def test_a_colour_of_the_graph_means_the_same_in_every_round(folders):
    chart = charts_in(folders["stragglers"].with_suffix(".html").read_text())["graph-1"]
    known = [value for value in chart["tables"]["nodes"]["metric"] if value is not None]
    assert chart["spec"]["layer"][2]["encoding"]["fill"]["scale"]["domain"] == pytest.approx([min(known), max(known)])
    edges = chart["spec"]["layer"][0]["encoding"]["strokeWidth"]
    widths = chart["tables"]["edges"][edges["field"]]
    assert edges["scale"]["domain"] == pytest.approx([min(widths), max(widths)], rel=1e-3)


def test_the_slider_replays_the_graph(show):
    page = show("stragglers")
    pale = "[...document.querySelectorAll('#graph-1 .mark-symbol path')].filter((p) => +p.getAttribute('opacity') < 1)"
    assert page.locator("#at").text_content() == "12"
    assert page.evaluate(f"{pale}.length") == 0
    page.locator("#round").fill("6")
    assert page.locator("#at").text_content() == "6"
    until(page, f"{pale}.length === 1")  # client 1 is away
    page.locator("#round").fill("0")
    page.locator("#play").click()
    until(page, "document.querySelector('#at').textContent === '12'")


def test_values_stand_at_the_pointer_and_the_wheel_zooms(show):
    page = show("stragglers")
    at_half(page, "learning-accuracy")
    charts = charts_in(page.content())
    curve = charts["learning-accuracy"]["tables"]["curve"]
    told = page.locator("#learning-accuracy .told")
    assert told.locator("p").text_content() == "rounds: 6"
    assert told.locator("th").all_text_contents() == curve["method"][:1]
    value, error, _ = told.locator("td").all_text_contents()
    assert float(value) == pytest.approx(curve["metric"][6], rel=1e-3)
    assert float(error.removeprefix("± ")) == pytest.approx(curve["high"][6] - curve["metric"][6], rel=1e-3)
    words = "#learning-accuracy .role-axis-label text"
    labels = f"[...document.querySelectorAll('{words}')].map((t) => t.textContent).join()"
    before = page.evaluate(labels)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    until(page, f"{labels} !== '{before}'")
    page.locator("#learning-accuracy button").click()
    until(page, f"{labels} === '{before}'")
    page.locator("#learning-accuracy select").first.select_option("virtual time, s")
    until(page, f"{labels} !== '{before}'")


@pytest.mark.parametrize("how", [{}, {"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 800}}], ids=str)
def test_it_reads_well_for_everybody(show, how):
    """No violation that axe-core calls serious; nothing is wider than a phone; tables stand behind pictures."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="it brings axe-core")
    page = show("sweep", bypass_csp=True, **how)
    found = axe.Axe().run(page).response["violations"]
    serious = [each for each in found if each["impact"] in ("serious", "critical")]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in serious] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#bytes details.values summary").click()
    assert page.locator("#bytes details.values td").first.text_content()


def test_it_is_printed_with_every_chart_and_no_control(show):
    page = show("stragglers")
    page.emulate_media(media="print")
    assert page.locator(".controls:visible").count() == 0
    assert page.pdf().startswith(b"%PDF")
