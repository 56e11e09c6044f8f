"""How heavy the page of a large run is: 200 clients, 200 rounds, a scenario. Writes benchmarks/results/report.md."""

import shutil
import subprocess
import time
from pathlib import Path

from common import new_folder, options, run_command, seconds_of, spread, table, write

CONFIG = """
clients = 200
rounds = 200
topology = { p = 0.05 }
data = { rotations = [0, 90, 180, 270] }
time = { clock = "virtual", staleness = 4 }
compute = { step_s = 0.01 }
stragglers = { kind = "lognormal", sigma = 0.5 }
"""
REPEATS = 5


def main() -> None:
    options(__doc__).parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with new_folder() as root:
        (root / "empty.html").write_text("<!doctype html><title>empty</title>")
        command, run = run_command(root, CONFIG)
        subprocess.run(command, check=True)
        written = seconds_of("report", str(run), "--out", str(root / "page.html"))
        size = (root / "page.html").stat().st_size
        rows = [("writing the page", f"{written:.1f} s"), ("its size", f"{size / 1e6:.2f} MB")]
        if chromium:
            page, empty = (
                [_open(chromium, root / name, root / f"profile-{name}-{i}") for i in range(REPEATS)]
                for name in ("page.html", "empty.html")
            )
            rows.append(("Chromium, from its start until the page is there, s", spread(page, ".2f", " to ")))
            rows.append(("the same with an empty page, s", spread(empty, ".2f", " to ")))
    made_by = f"`python benchmarks/report.py`: 200 clients, 200 rounds, a scenario; {REPEATS} repeats"
    write("report", made_by, table("|", rows))


def _open(chromium: str, page: Path, profile: Path) -> float:
    start = time.monotonic()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    subprocess.run(
        [chromium, *options, "--disable-component-update", "--disable-sync", f"--user-data-dir={profile}", "--dump-dom",
         page.as_uri()],
        check=True, capture_output=True,
    )  # fmt: skip
    return time.monotonic() - start


if __name__ == "__main__":
    main()
