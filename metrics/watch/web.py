"""Runs in a browser while they go on: the page of ``report``, of which viewers ask for what has changed. Work is done
only when somebody asks and a database has changed, once for all who ask, and in about a fifth of a core over time."""

import gzip
import json
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from ...topology.errors import UserError
from .. import lock
from ..board import read_board
from ..reader import runs_in
from ..report.board import DATA, contents as contents_of_board, draw as draw_board, sections_of
from ..report.chart import Chart, compact
from ..report.methods import Method, methods_of
from ..report.page import arranged, contents, document, main_of, parts_of, policy
from ..store import RunFolderError
from .screen import Place, line
from .snapshot import Follower, Snapshot

_EVERY_S = 1.0
_SHARE, _MOST_CREDIT_S = 0.2, 0.5  # of a core
_READING, _MOST_READING_S = 0.1, 1.0  # of a core, for how far runs are, whatever the rest has cost
_QUICK = ("curves", "spread")  # what is made with the table of results
_OLD_S = 2.0
_PATIENCE_S = 0.5  # for what is being made; after that an answer goes without it
_MOST_AT_ONCE = 8 << 20  # characters of an answer; the rest is asked for next
_KEPT = 8  # answers; viewers that have just come know another version than the others
_CONNECTIONS, _LONGEST_S = 32, 60.0
Stamp = tuple[tuple[int, int, int], ...]


@dataclass
class Answer:
    """A text as it is sent, to however many who ask for it."""

    kind: str
    text: bytes

    @cached_property
    def zipped(self) -> bytes:
        return gzip.compress(self.text, 4)


@dataclass
class _Made:
    stamp: object = None
    at: float = 0.0
    charts: Sequence[Chart] = ()


class Live:
    """What is to be seen of a run, or of the runs in a folder, which may not be there yet."""

    def __init__(self, folder: Path):
        self._folder, self._lock = folder, threading.RLock()
        self._idle = threading.Event()  # nobody makes anything
        self._idle.set()
        self.makings = 0
        self._trouble = ""
        self._asked = self._credited = -9e9
        self._credit_s, self._spent_s = _MOST_CREDIT_S, time.process_time()
        self._answers: dict[int, Answer] = {}  # to who knows that version, until there is something new
        self._forget()
        self._version, self._items = 0, dict[str, tuple[int, str]]()
        self._status = {"state": "waiting", "text": f"waiting for a run in {folder}"}

    def _forget(self) -> None:
        self._stamps: dict[Path, Stamp] = {}
        self._entries = 0  # of a board
        self._shown_at = 0.0
        self._shown: object = None  # the stamps that the table of results is of
        self._methods: list[Method] = []
        self._made: dict[str, _Made] = {}
        self._followers: dict[Path, tuple[int, Follower]] = {}
        self._ended: dict[Path, tuple[Stamp, Snapshot]] = {}

    def news(self, since: int) -> Answer:
        """Returns as JSON how the runs are, and what has changed since that version."""
        with self._lock:
            if time.monotonic() - self._asked >= _EVERY_S:
                self._asked = time.monotonic()
                self._look()
        self._idle.wait(_PATIENCE_S)
        with self._lock:
            answer = self._answers.get(since) or Answer("application/json", self._news(since).encode())
            if len(self._answers) < _KEPT:
                self._answers[since] = answer
            return answer

    def _news(self, since: int) -> str:
        items, now, stamps = dict(self._items), time.monotonic(), self._stamps
        text = "\n".join(filter(None, (self._status["text"], self._trouble)))
        about: dict[str, Any] = {"state": self._status["state"], "text": text}
        ages = {
            chart.name: f"as of {now - made.at:.0f} s ago"
            for made in self._made.values()
            for chart in made.charts
            if made.stamp != stamps and now - made.at > _OLD_S
        }
        fresh = self._shown == stamps and all(made.stamp == stamps for made in self._made.values())
        if self._shown not in (None, stamps) and now - self._shown_at > _OLD_S:
            ages[""] = f"as of {now - self._shown_at:.0f} s ago"
        size, taken, left = 0, list[tuple[str, str]](), sorted(items.items(), key=lambda item: item[1])
        left = [each for each in left if each[1][0] > since]
        for name, (version, text) in left:
            if size > _MOST_AT_ONCE:
                break
            taken.append((name, text))
            since, size = version, size + len(text)
        about |= {"version": since, "more": len(taken) < len(left), "fresh": fresh, "ages": ages}
        charts = ", ".join(f"{json.dumps(name)}: {text}" for name, text in taken if name)
        main = "".join(f', "main": {text}' for name, text in taken if not name)
        return f'{json.dumps(about)[:-1]}, "charts": {{{charts}}}{main}}}'

    def _look(self) -> None:
        """Tells how the runs are, and has the page made if there is anything new, by a thread that may take longer."""
        self._answers.clear()
        now, spent_s = time.monotonic(), time.process_time()
        away_s = now - self._credited
        self._credit_s = min(_MOST_CREDIT_S, self._credit_s + _SHARE * away_s)
        self._credit_s -= spent_s - self._spent_s
        self._credited, self._spent_s = now, spent_s
        try:
            if (self._folder / DATA).is_file():
                self._look_at_board()
                return
            folders = runs_in(self._folder)
            stamps = {folder: _stamp(folder) for folder in folders}
            going = self._status["state"] == "running"
            reading_s = min(_MOST_READING_S, _READING * max(_EVERY_S, away_s)) if going else _MOST_READING_S
            self._status, self._stamps = self._how(folders, stamps, reading_s), stamps
            going = self._status["state"] == "running"
            if self._idle.is_set() and (self._credit_s > 0 or not going):
                self._idle.clear()
                may_s = max(self._credit_s, 0.0) if going else _EVERY_S
                threading.Thread(target=self._work, args=(folders, stamps, may_s), daemon=True).start()
        except (UserError, OSError) as error:
            self._status = {"state": "waiting", "text": f"cannot be read now: {error}"}
            there = (self._folder / "run.sqlite").exists() or any(self._folder.glob("*/run.sqlite"))
            if self._idle.is_set() and not there:
                gone = f"{self._folder} is no longer there: the page shows what it last held"
                self._status["text"] = gone if self._items else f"waiting for a run in {self._folder}"
                self._forget()

    def _look_at_board(self) -> None:
        stamps = {self._folder: _stamp(self._folder, DATA)}
        state = "running" if lock.is_held(self._folder) else "ended"
        if self._shown != stamps:
            board = read_board(self._folder / DATA)
            chart = draw_board(board) if board.entries else None
            sections = list(sections_of(board, chart))
            self.makings += 1
            self._entries = len(board.entries)
            if chart:
                self._set(chart.name, compact(chart.as_dict()))
            self._set("", json.dumps(main_of("board.html", **contents_of_board(board, sections))))
            self._shown = self._stamps = stamps
        more = "; more are being made, and come here problem by problem" if state == "running" else ""
        self._status = {"state": state, "text": f"{self._entries} entries{more}"}

    def _work(self, folders: Sequence[Path], stamps: dict[Path, Stamp], may_s: float) -> None:
        try:
            self._make(folders, stamps, may_s)
            self._trouble = ""
        except (RunFolderError, OSError) as error:
            self._trouble = f"cannot be read now: {error}"
        finally:
            with self._lock:
                self._answers.clear()
            self._idle.set()

    def _how(self, folders: Sequence[Path], stamps: dict[Path, Stamp], reading_s: float) -> dict[str, str]:
        """Returns whether any run goes on, and a line for each that does, or for all."""
        lines, going, texts, end = list[str](), False, list[str](), time.thread_time() + reading_s
        for number, folder in enumerate(folders, 1):
            stamp, snapshot = self._ended.get(folder, (None, None))
            if not snapshot or stamp != stamps[folder] or (snapshot.behind and time.thread_time() < end):
                inode = stamps[folder][0][0]
                if folder not in self._followers or self._followers[folder][0] != inode:
                    self._followers[folder] = inode, Follower(folder)
                snapshot = self._followers[folder][1].look(seconds=end - time.thread_time())
            text = line(snapshot, Place(number, len(folders)))
            text += f" ({snapshot.cause})" if snapshot.cause else ""
            if snapshot.has_ended:
                self._ended[folder] = stamps[folder], snapshot
                text += "; its records are still being read" if snapshot.behind else ""
            elif any(lock.is_held(each) for each in (folder, folder.parent)):
                going = True
                texts.append(text)
            else:
                text += "; no process of this run is left"
            lines.append(text)
        shown = texts or lines
        if len(folders) > len(shown) or len(shown) > 4:
            shown = [f"{len(self._ended)} of {len(folders)} runs have ended", *shown[-4:]]
        return {"state": "running" if going else "ended", "text": "\n".join(shown)}

    def _make(self, folders: Sequence[Path], stamps: dict[Path, Stamp], may_s: float) -> None:
        """Makes the table of results and the curves, and then what is oldest, at least one, until ``may_s`` of CPU time
        are over."""
        began = time.monotonic()
        if self._shown != stamps:
            self._methods = methods_of(folders)
            self.makings += 1
        parts = parts_of(self._methods)
        stale = [part for part in parts if part.name not in self._made or self._made[part.name].stamp != stamps]
        if self._shown == stamps and not stale:
            return
        known = {part.name: self._made.get(part.name, _Made()) for part in parts}
        quick = [part for part in stale if part.name.startswith(_QUICK)]
        for number, part in enumerate(sorted(stale, key=lambda part: (part not in quick, known[part.name].at))):
            if number > len(quick) and time.thread_time() > may_s:
                break
            known[part.name] = _Made(stamps, time.monotonic(), list(part.make()))
            for chart in known[part.name].charts:
                self._set(chart.name, compact(chart.as_dict()))
        shown = contents(self._methods, *arranged(self._methods, [(part, known[part.name].charts) for part in parts]))
        main = json.dumps(main_of("page.html", **shown))
        there = {"", *(chart.name for made in known.values() for chart in made.charts)}
        with self._lock:
            self._items = {name: item for name, item in self._items.items() if name in there}
            self._set("", main)  # after the charts that it names
            self._made, self._shown, self._shown_at = known, stamps, began

    def _set(self, name: str, text: str) -> None:
        with self._lock:
            if name not in self._items or self._items[name][1] != text:
                self._version += 1
                self._items[name] = self._version, text


def _stamp(folder: Path, name: str = "run.sqlite") -> Stamp:
    """Tells one state of a file, such as a database, from another."""
    found = []
    for file in (folder / name, folder / f"{name}-wal"):
        with suppress(FileNotFoundError):
            about = file.stat()
            if about.st_size:  # a reader, too, leaves an empty log
                found.append((about.st_ino, about.st_size, about.st_mtime_ns))
    if not found:
        raise RunFolderError(f"{folder}: has no {name}")
    return tuple(found)


class Server(ThreadingHTTPServer):
    """Answers only on this machine, and only whoever knows the token of its address."""

    def __init__(self, folder: Path, port: int = 0):
        self.live, self._token = Live(folder), secrets.token_urlsafe(24)
        page = document("base.html", [], f"waiting for a run in {folder}", live=True).encode()
        self._page = Answer("text/html; charset=utf-8", page)
        self._open: dict[socket.socket, float] = {}
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{self._token}/"

    def answer(self, path: str) -> Answer | None:
        """Returns what is at a path; None where nothing is."""
        place, _, query = path.partition("?")
        _, token, name = pieces if len(pieces := place.split("/")) == 3 else ("", "", "")
        if not secrets.compare_digest(token.encode(), self._token.encode()):
            return None
        if not name:
            return self._page
        since = parse_qs(query).get("since", ["0"])[0]
        if name == "news" and since.isascii() and since.isdigit() and len(since) < 16:
            return self.live.news(int(since))
        return None

    def process_request(self, request, client_address) -> None:
        if len(self._open) >= _CONNECTIONS:
            self.shutdown_request(request)
            return
        self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request) -> None:
        self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Ends connections that take too long, as one does that sends a letter now and then."""
        for request, since in list(self._open.items()):
            if time.monotonic() - since > _LONGEST_S:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address) -> None:
        """A viewer that goes away is no error of ours."""
        import sys

        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 10  # seconds of silence
    server_version, sys_version = "sheafgossip", ""

    def do_GET(self) -> None:
        own = [f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")]
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        site = self.headers.get("Sec-Fetch-Site", "none")
        if host not in own or origin not in (None, f"http://{host}") or site not in ("none", "same-origin"):
            self._send(HTTPStatus.FORBIDDEN, Answer("text/plain", b"not for other sites\n"))
        elif found := self.server.answer(self.path):
            self._send(HTTPStatus.OK, found)
        else:
            self._send(HTTPStatus.NOT_FOUND, Answer("text/plain", b"nothing is here\n"))

    do_HEAD = do_GET

    def _send(self, status: HTTPStatus, answer: Answer) -> None:
        zipped = len(answer.text) > 1000 and "gzip" in self.headers.get("Accept-Encoding", "")
        text = answer.zipped if zipped else answer.text
        self.send_response(status)
        for name, value in self._headers(answer.kind, len(text), zipped=zipped):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _headers(self, kind: str, length: int, *, zipped: bool) -> Iterator[tuple[str, str]]:
        yield "Content-Type", kind
        yield "Content-Length", str(length)
        if zipped:
            yield "Content-Encoding", "gzip"
        yield (
            "Content-Security-Policy",
            f"{policy(live=True)}; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
        )
        yield "Cache-Control", "no-store"
        yield "X-Content-Type-Options", "nosniff"
        yield "Referrer-Policy", "no-referrer"
        yield "Cross-Origin-Resource-Policy", "same-origin"

    def log_message(self, format: str, *args: object) -> None:
        pass
