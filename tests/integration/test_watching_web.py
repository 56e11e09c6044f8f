"""Runs in a browser while they go on: who gets an answer, what it costs, and what the page shows."""

import gzip
import http.client
import json
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from runs import RunFolder, small, until
from sheafgossip.metrics.board import Board, Entry
from sheafgossip.metrics.watch import web
from sheafgossip.metrics.watch.web import Server

SHORT = small('training = {work = "full", alpha = 0.5}', rounds=5, samples=400)
LONG = SHORT.replace("rounds = 5", "rounds = 1_000_000")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    with Server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    told = answer.status, answer.headers, answer.read()
    connection.close()
    return told


def news(server: Server, since: int = 0) -> dict:
    status, _, text = asked(server, f"{path_of(server)}news?since={since}")
    assert status == 200
    return json.loads(text)


def path_of(server: Server) -> str:
    return "/" + server.address.partition("//")[2].partition("/")[2]


def test_only_who_knows_the_token_and_comes_from_no_other_site_gets_anything(tmp_path):
    with served(tmp_path / "run") as server:
        path, own = path_of(server), f"127.0.0.1:{server.server_port}"
        assert server.server_address[0] == "127.0.0.1"
        wrong = "/", "/news", "*", "//", f"{path[:-2]}/", f"{path}run.sqlite", f"{path}../", f"{path}news/", path[:-1]
        for each in (*wrong, f"{path}news?since=-1", f"{path}news?since=1e9"):
            status, _, text = asked(server, each)
            assert (status, text) == (404, b"nothing is here\n"), each
        others = [{"Host": f"evil.example:{server.server_port}"}, {"Host": "127.0.0.1"}, {"Host": ""},
                  {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec_Fetch_Site": "cross-site"},
                  {"Sec_Fetch_Site": "same-site"}]  # fmt: skip
        for headers in others:
            assert asked(server, path, **headers)[::2] == (403, b"not for other sites\n"), headers
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert asked(server, path, method)[0] == 501
        status, headers, text = asked(server, path, Origin=f"http://{own}", Sec_Fetch_Site="same-origin")
        assert status == 200
        assert b"waiting for a run in" in text
        rules = dict(rule.strip().partition(" ")[::2] for rule in headers["Content-Security-Policy"].split(";"))
        assert (rules["default-src"], rules["connect-src"], rules["frame-ancestors"]) == ("'none'", "'self'", "'none'")
        assert "unsafe" not in rules["script-src"]
        told = {name: headers[name] for name in ("Cache-Control", "X-Content-Type-Options", "Referrer-Policy")}
        assert list(told.values()) == ["no-store", "nosniff", "no-referrer"]
        status, headers, nothing = asked(server, path, "HEAD", Accept_Encoding="gzip")
        assert (status, nothing, headers["Content-Encoding"]) == (200, b"", "gzip")
        assert gzip.decompress(asked(server, path, Accept_Encoding="gzip")[2]) == text
        assert news(server)["state"] == "waiting"


def test_viewers_share_what_is_made_which_is_only_what_has_changed(run_in_threads, tmp_path):
    run = run_in_threads(SHORT).copy(tmp_path / "run")
    with served(run.path) as server, ThreadPoolExecutor(5) as viewers:

        def all_ask() -> dict:
            deadline, latest = time.monotonic() + 30, {"fresh": False}
            while not latest["fresh"] or latest["more"]:
                assert time.monotonic() < deadline
                *_, latest = viewers.map(lambda _: news(server), range(15))
            return latest

        first = all_ask()
        assert server.live.makings == 1
        assert (first["state"], "finished after" in first["text"]) == ("ended", True)
        rows = run.rows("SELECT round, 100 * avg(test_metric) FROM round WHERE node >= 0 GROUP BY round")
        curve = first["charts"]["learning-accuracy"]["tables"]["curve"]
        assert list(zip(curve["round"], curve["metric"], strict=True)) == [
            (number, pytest.approx(mean, rel=1e-5)) for number, mean in rows
        ]
        answers = list(viewers.map(server.live.news, [0] * 15))
        assert len(set(map(id, answers))) < len(answers)
        time.sleep(1.1)
        assert news(server, first["version"])["charts"] == {}
        assert "main" not in news(server, first["version"])
        run.alter("UPDATE round SET test_metric = 0.125 WHERE round = 5")
        time.sleep(1.1)
        second = all_ask()
        assert server.live.makings == 2
        assert second["charts"]["learning-accuracy"]["tables"]["curve"]["metric"][-1] == 12.5
        changed = news(server, first["version"])["charts"].keys()
        assert "learning-accuracy" in changed
        assert "bytes" not in changed


def test_a_run_that_has_ended_is_read_to_its_end_a_little_at_each_look(run_in_threads, monkeypatch):
    run = run_in_threads(SHORT)
    monkeypatch.setattr(web, "_MOST_READING_S", 1e-4)
    monkeypatch.setattr(web, "_EVERY_S", 0.0)
    live, texts = web.Live(run.path), list[str]()

    def is_read() -> bool:
        texts.append(json.loads(live.news(0).text)["text"])
        return "records are still being read" not in texts[-1]

    until(is_read)
    assert len(texts) > 1
    mean = run.rows("SELECT avg(test_metric) FROM round WHERE node >= 0 AND round = 5")[0][0]
    assert f"accuracy {100 * mean:.1f} %" in texts[-1]


def test_a_page_is_fresh_only_when_all_of_it_is_made(run_in_threads, monkeypatch):
    monkeypatch.setattr(web, "_EVERY_S", 0.0)  # so that each look makes a part
    live, told = web.Live(run_in_threads(SHORT).path), list[dict]()

    def look() -> dict:
        told.append(json.loads(live.news(0).text))
        return told[-1]

    until(lambda: look()["fresh"])
    charts = told[-1]["charts"]
    assert any(len(earlier["charts"]) < len(charts) for earlier in told if "main" in earlier)
    assert all(look()["charts"] == charts for _ in range(5))


def test_a_board_grows_entry_by_entry(tmp_path):
    entry = Entry("clusters", "Clusters", "d-psgd", "D-PSGD", "gossip", "clients = 4", flaw="refused: it says why")
    with served(tmp_path) as server:
        for count in (0, 1):
            Board({"seeds": "3"}, (entry,) * count).save(tmp_path / "board.json")
            until(lambda: f"{count} entries" in news(server)["text"])  # noqa: B023 (it is called here)
            assert ("refused: it says why" in news(server)["main"]) == bool(count)


def test_the_command_prints_the_address_ctrl_c_ends_it_and_a_file_is_refused(begin, tmp_path):
    watching = begin("watch", tmp_path / "run", "--web")
    address = watching.process.stdout.readline()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/\n", address)
    watching.signal(signal.SIGINT)
    assert watching.end() == (0, "")
    (tmp_path / "file").write_text("")
    code, said = begin("watch", tmp_path / "file" / "run", "--web").end()
    assert (code, said) == (
        2,
        f"error: {tmp_path}/file: is a file; --web needs the folder of a run, or of one to come\n",
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.fixture
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="it drives the browser")
    if CHROMIUM is None:
        pytest.skip("no Chromium here to open the pages in")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def test_a_page_opened_before_the_run_follows_it_until_it_is_killed_gone_and_made_again(browser, begin, tmp_path):
    said, (config, folder) = [], (tmp_path / "config.toml", tmp_path / "run")
    config.write_text(LONG)
    with served(folder) as server:
        page = browser.new_page(viewport={"width": 1180, "height": 900})
        page.set_default_timeout(150_000)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))

        def shows(where: str, what: str) -> bool:
            return re.search(what, page.locator(where).text_content()) is not None

        page.goto(server.address)
        until(lambda: shows("#live", "^waiting for a run in"))
        going = begin("run", config, "--out", folder, "--engine", "threads", "--quiet")
        page.wait_for_selector("#learning-accuracy[data-ready]")
        page.wait_for_selector("#round", state="attached")
        page.select_option("#learning-accuracy [name=against]", "wall time, s")
        page.locator("#learning-accuracy details summary").click()
        page.locator("#round").fill("0")
        until(lambda: shows("#live", r" round \d"))
        (first,) = re.search(r" round (\d+)", page.locator("#live").text_content()).groups()
        table = page.locator("#learning-accuracy details table")
        drawn = table.text_content()
        until(lambda: table.text_content() != drawn)
        until(lambda: not shows("#live", f" round {first} "))
        assert page.locator("#learning-accuracy details").get_attribute("open") is not None
        assert page.locator("#learning-accuracy [name=against]").input_value() == "wall time, s"
        assert (page.locator("#round").input_value(), page.locator("#at").text_content()) == ("0", "0")
        going.kill()
        until(lambda: shows("header", r"\(seed 0\): interrupted") and page.locator("[data-age]").count() == 0)
        last = RunFolder(folder).rows("SELECT max(round) FROM round")[0][0]
        assert shows("#live", rf"{last} of 1000000.*; no process of this run is left|interrupted after.* {last} of")
        shutil.rmtree(folder)
        until(lambda: shows("#live", "is no longer there"))
        config.write_text(SHORT)
        assert begin("run", config, "--out", folder, "--engine", "threads", "--quiet").end()[0] == 0
        until(lambda: shows("#live", "finished after") and shows("header", "5 rounds"))
        assert said == []
