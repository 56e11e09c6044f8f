"""How heavy the page of a large run is: 200 clients, 200 rounds, a scenario. Writes benchmarks/results/report.md."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RESULT = Path(__file__).parent / "results" / "report.md"
CONFIG = """
clients = 200
rounds = 200
[topology]
p = 0.05
[data]
rotations = [0, 90, 180, 270]
[time]
clock = "virtual"
staleness = 4
[compute]
step_s = 0.01
[stragglers]
kind = "lognormal"
sigma = 0.5
"""
REPEATS = 5


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory(prefix="sheafgossip-report-") as folder:
        root = Path(folder)
        (root / "large.toml").write_text(CONFIG)
        (root / "empty.html").write_text("<!doctype html><title>empty</title>")
        _run("run", str(root / "large.toml"), "--quiet", "--out", str(root / "run"))
        written = _run("report", str(root / "run"), "--out", str(root / "page.html"))
        size = (root / "page.html").stat().st_size
        lines = [
            f"Made by `python benchmarks/report.py`: 200 clients, 200 rounds, a scenario; {REPEATS} repeats.",
            "",
            "| | |",
            "|---|---|",
            f"| writing the page | {written:.1f} s |",
            f"| its size | {size / 1e6:.2f} MB |",
        ]
        if chromium:
            page, empty = (
                [_open(chromium, root / name, root / f"profile-{name}-{i}") for i in range(REPEATS)]
                for name in ("page.html", "empty.html")
            )
            lines.append(f"| Chromium, from its start until the page is there | {_spread(page)} |")
            lines.append(f"| the same with an empty page | {_spread(empty)} |")
    RESULT.write_text("\n".join(lines) + "\n")
    print(RESULT.read_text())


def _run(*words: str) -> float:
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "sheafgossip.launcher.cli", *words], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


def _open(chromium: str, page: Path, profile: Path) -> float:
    start = time.monotonic()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    subprocess.run(
        [chromium, *options, "--disable-component-update", "--disable-sync", f"--user-data-dir={profile}", "--dump-dom",
         page.as_uri()],
        check=True, capture_output=True,
    )  # fmt: skip
    return time.monotonic() - start


def _spread(times: list[float]) -> str:
    return f"{statistics.median(times):.2f} s ({min(times):.2f} to {max(times):.2f})"


if __name__ == "__main__":
    main()
