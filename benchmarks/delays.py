"""What exchanging a message takes of its two clients' threads, by clock: without a scenario, in virtual time, and with
its link's delay really waited for: twelve clients, each connected with all others; the three take turns."""

import subprocess

from common import new_folder, options, reading, run_command, spread, table, write

RUN = """
clients = 12
rounds = 150
topology.kind = "complete"
training.alpha = 0.5
algorithm.name = "d-psgd"
evaluation.every = 0
"""
DELAYED = "links = { latency_s = 0.005, uplink = 1e7, downlink = 1e7 }\n"
CLOCKS = {
    "no scenario": "",
    "virtual time": f'{DELAYED}time.clock = "virtual"\ncompute.step_s = 0.001\n',
    "wall clock": f'{DELAYED}time.clock = "wall"\n',
}


def main() -> None:
    repeats = options(__doc__, repeats=5).parse_args().repeats
    found: dict[str, list[float]] = {name: [] for name in CLOCKS}
    for _ in range(repeats):
        for name, scenario in CLOCKS.items():
            found[name].append(microseconds(RUN + scenario))
    rows = [(name, spread(each)) for name, each in found.items()]
    text = f"Microseconds of CPU for a message, medians of {repeats} (smallest to largest).\n\n"
    write("delays", "`make bench-delays`", text + table("clock|sent and received, µs", rows))


def microseconds(text: str) -> float:
    with new_folder() as folder:
        command, out = run_command(folder, text)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with reading(out / "run.sqlite") as records:
            (spent,) = records.execute("SELECT sum(cpu_s) FROM work_total WHERE part = 'exchange'").fetchone()
            (messages,) = records.execute("SELECT sum(messages) FROM traffic").fetchone()
    return 1e6 * spent / messages


if __name__ == "__main__":
    main()
