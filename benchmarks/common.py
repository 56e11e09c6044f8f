"""What the benchmarks share: options, the command line in a process of its own, tables, and files of results."""

import argparse
import csv
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PICTURES = HERE.parent / "docs" / "pictures"
CLI = (sys.executable, "-m", "sheafgossip.launcher.cli")
LAST_SAMPLES = "(SELECT max(rowid) FROM resource GROUP BY node)"

HEAD = """# What a run costs

Put together on {machine} from the last results of each part, which names the command that made it;
`make bench` measures them all anew. Parts may differ in age, and a machine that does other work at the time gives worse
figures: ratios beside a floor, measured in the same minutes, hold better than seconds. The other benchmarks are listed
by `make help`; their results are in [results/](results/).
"""
PARTS = {
    "scale": "Start-up and memory",
    "efficiency": "CPU time of whole runs against the gradient steps alone",
    "parts": "Where the CPU time of these runs goes",
    "ring": "A small run from start to end",
    "own": "The same with the model as a module of the user's",
    "peers": "The same work in other simulators",
    "exchange": "Exchange rounds a second against bare pyzmq",
    "planner": "Planning",
    "soak": "A very long run",
}


def options(page: str | None, *, seeds: int = 0, repeats: int = 0, out: str = "") -> argparse.ArgumentParser:
    """A parser described by the first line of ``page``, with those options that have a default here.

    Runs that ``--out`` holds already are not repeated."""
    parser = argparse.ArgumentParser(description=(page or "").split("\n")[0])
    if seeds:
        parser.add_argument("--seeds", type=int, default=seeds)
    if repeats:
        parser.add_argument("--repeats", type=int, default=repeats)
    if out:
        parser.add_argument(
            "--out",
            type=lambda path: Path(path).resolve(),
            default=f"runs/{out}",
            help="run folders; what is there is not run again",
        )
    return parser


def run_command(folder: Path, text: str, *words: str, out: str = "run") -> tuple[list[str], Path]:
    """The command that runs the configuration ``text``, written into ``folder``, and the run's folder in it."""
    config = folder / "config.toml"
    config.write_text(text)
    return [*CLI, "run", str(config), "--out", str(folder / out), "--quiet", *words], folder / out


@contextmanager
def new_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sheafgossip-bench-") as folder:
        yield Path(folder)


def seconds_of(*words: str) -> float:
    """Wall time of a command of sheafgossip."""
    started = time.monotonic()
    subprocess.run([*CLI, *words], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started


@contextmanager
def reading(database: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)
    try:
        yield connection
    finally:
        connection.close()


def wait_for_exit(process: subprocess.Popen) -> float:
    """CPU seconds of a process and all its descendants that were waited for."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def cpu_of(command: Sequence[str]) -> float:
    """CPU seconds of a command and all its descendants."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    seconds = wait_for_exit(process)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return seconds


def spread(values: Sequence[float], form: str = ".3g", to: str = "-") -> str:
    """Median (smallest to largest)."""
    return f"{statistics.median(values):{form}} ({min(values):{form}}{to}{max(values):{form}})"


def table(header: str, rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; the titles in ``header`` are separated by |."""
    titles = header.split("|")
    lines = (titles, *([str(cell) for cell in row] for row in rows))
    head, *rest = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, "|---" * len(titles) + "|", *rest])


def write(name: str, made_by: str, text: str) -> None:
    """Prints ``text`` and writes it to benchmarks/results/NAME.md, and the parts of benchmarks/README.md anew."""
    print(text)
    (RESULTS / f"{name}.md").write_text(f"Made by {made_by}.\n\n{text}\n")
    if name in PARTS:
        machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
        there = {title: path for part, title in PARTS.items() if (path := RESULTS / f"{part}.md").exists()}
        parts = [f"## {title}\n\n{path.read_text()}" for title, path in there.items()]
        (HERE / "README.md").write_text("\n".join([HEAD.format(machine=machine), *parts]))


def write_csv(name: str, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes benchmarks/results/NAME.csv."""
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def count(database: Path, query: str) -> int:
    """The number that ``query`` gives; 0 while its table does not exist yet."""
    try:
        with reading(database) as records:
            return records.execute(query).fetchone()[0]
    except sqlite3.Error:
        return 0
