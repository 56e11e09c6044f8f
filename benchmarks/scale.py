"""How soon clients are ready, and how much memory they take.

Runs the command line as a user would: 20 and 200 logistic clients on rotated digits (Erdős–Rényi), where MNIST is at
hand 40 clients with the CNN of 34,826 parameters, and with --thousands 1,000 and 3,000 logistic clients on a
Barabási–Albert graph (m = 2), and 400 with the CNN. Seconds until ready count from the start of the command to the
moment when every client has met its neighbours. Total memory (PSS) is the sum of what every process, the launcher's
included, says at its end; pages that several share are counted once.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import LAST_SAMPLES, count, new_folder, options, reading, run_command, seconds_of, table, write

STARTED = "SELECT count(*) FROM event WHERE kind = 'start'"  # on record within half a second
LOGISTIC = """
clients = {clients}
rounds = 20
topology = {{ p = {p} }}
data = {{ rotations = [0, 90, 180, 270] }}
training = {{ alpha = 0.5 }}
algorithm = {{ name = "dfedu", lam = 0.03 }}
"""
THOUSANDS = """
clients = {clients}
rounds = {rounds}
topology = {{ kind = "barabasi-albert", m = 2 }}
data = {{ rotations = [0, 90, 180, 270], partition = "overlapping", samples_each = 20 }}
evaluation = {{ every = 0 }}
algorithm = {{ name = "d-psgd" }}
"""
CNN = """
clients = {clients}
rounds = 3
topology = {{ p = {p} }}
data = {{ dataset = "mnist", root = "{root}", rotations = [0, 90, 180, 270], reduced_clients = 0.5 }}
model = {{ kind = "cnn" }}
training = {{ work = "epochs", alpha = 0.05 }}
algorithm = {{ name = "dfedu" }}
"""


def measure(name: str, text: str, python: str) -> tuple[object, ...]:
    """A row of the table."""
    version = subprocess.check_output([python, "-c", "import platform; print(platform.python_version())"], text=True)
    with new_folder() as folder:
        (_, *words), out = run_command(folder, text)
        command = [python, *words]
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not count(out / "run.sqlite", STARTED) and process.poll() is None:
            time.sleep(0.05)
        ready = time.monotonic() - started
        if process.wait() != 0:
            raise SystemExit(f"{name}: the run failed")
        total = time.monotonic() - started
        with reading(out / "run.sqlite") as records:
            last = records.execute(f"SELECT node, uss, pss FROM resource WHERE rowid IN {LAST_SAMPLES}").fetchall()
            clients, rounds = records.execute("SELECT count(DISTINCT node), max(round) FROM round").fetchone()
    uss = [own / 1e6 for node, own, _ in last if node >= 0]
    memory = f"{statistics.median(uss):.1f}", f"{max(uss):.1f}", f"{sum(pss for *_, pss in last) / 1e9:.2f}"
    return name, version.strip(), clients, f"{ready:.1f}", rounds, f"{total:.1f}", *memory


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data-root", type=Path, help="folder with the MNIST files")
    parser.add_argument("--thousands", action="store_true", help="also 1,000, 3,000 and 400 CNN clients; takes 19 GB")
    parser.add_argument("--other", help="python of another environment with sheafgossip, to stand beside")
    arguments = parser.parse_args()
    help_s = statistics.median(seconds_of("--help") for _ in range(5))
    runs = [("logistic, rotated digits", LOGISTIC.format(clients=n, p=p)) for n, p in ((20, 0.3), (200, 0.05))]
    if arguments.thousands:
        many = ((1000, 20), (3000, 5))
        runs += [("logistic, rotated digits", THOUSANDS.format(clients=n, rounds=k)) for n, k in many]
    if arguments.data_root:
        sizes = ((40, 0.15), (400, 0.015)) if arguments.thousands else ((40, 0.15),)
        root = arguments.data_root.resolve()
        runs += [("CNN, rotated MNIST", CNN.format(root=root, clients=n, p=p)) for n, p in sizes]
    header = "run|Python|clients|ready after s|rounds|whole command s|own memory (USS) MB, median|largest|PSS GB"
    pythons = list(filter(None, [sys.executable, arguments.other]))
    text = table(header, [measure(*run, python) for run in runs for python in pythons])
    write("scale", "`make bench-scale`", f"{text}\n\n`sheafgossip --help` takes {help_s:.2f} s.")


if __name__ == "__main__":
    main()
