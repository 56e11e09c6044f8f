"""What measuring costs: CPU time of whole runs with and without it, and the collector under a heavy load.

CPU time is the operating system's for the command and all its descendants, so it leaves no process out. Runs with and
without measuring take turns, and change places from pair to pair.
"""

import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise

import psutil
import zmq
from common import cpu_of, new_folder, options, reading, run_command, spread, table, wait_for_exit, write

from sheafgossip.metrics.recorder import Recorder
from sheafgossip.metrics.records import EdgeRecord, RoundRecord, TrafficRecord, pack_end

RUNS = {
    "20 clients, logistic, full gradient, 600 rounds": """
clients = 20
rounds = 600
topology = { p = 0.2 }
training = { alpha = 0.5 }
algorithm = { name = "dfedu", lam = 0.3 }
""",
    "8 clients, CNN of 8 filters, an epoch a round, 240 rounds": """
clients = 8
rounds = 240
topology = { p = 0.4 }
model = { kind = "cnn", filters = [8] }
training = { work = "epochs", alpha = 0.1 }
algorithm = { name = "dfedu", lam = 0.1 }
""",
}

SENDERS, NEIGHBOURS, ROUNDS_A_SECOND, SECONDS = 200, 20, 10, 10
SENDING_PROCESSES = 2


def run(text: str, *settings: str) -> tuple[float, float | None]:
    """CPU seconds of a whole command, as the system counts them, and as the processes' own records add up to."""
    with new_folder() as folder:
        command, out = run_command(folder, text, *(word for setting in settings for word in ("--set", setting)))
        cpu = cpu_of(command)
        with reading(out / "run.sqlite") as records:
            (recorded,) = records.execute("SELECT sum(cpu_s) FROM cpu_total").fetchone()
    return cpu, recorded


def compare(name: str, text: str, repeats: int) -> tuple[str, ...]:
    """A row of the table."""
    on, off = "measuring.enabled=true", "measuring.enabled=false"
    costs: dict[str, list[tuple[float, float | None]]] = {on: [], off: []}
    for repeat in range(repeats):
        for setting in (on, off) if repeat % 2 else (off, on):
            costs[setting].append(run(text, setting))
        off_s, on_s = (costs[setting][-1][0] for setting in (off, on))
        print(f"{name}: pair {repeat + 1} of {repeats}: {off_s:.2f} s without, {on_s:.2f} s with", flush=True)
    start = statistics.median(run(text, off, "rounds=1")[0] for _ in range(3))
    cpu = {setting: [cpu_s for cpu_s, _ in found] for setting, found in costs.items()}
    median = {setting: statistics.median(values) for setting, values in cpu.items()}
    pairs = sorted(100 * (with_it / without - 1) for with_it, without in zip(cpu[on], cpu[off], strict=True))
    recorded = statistics.median(recorded_s / cpu_s for cpu_s, recorded_s in costs[on] if recorded_s)
    return (
        name,
        spread(cpu[off], ".2f", " to "),
        spread(cpu[on], ".2f", " to "),
        f"{100 * (median[on] / median[off] - 1):+.1f} %",
        f"{pairs[0]:+.1f} to {pairs[-1]:+.1f} %",
        f"{100 * (median[on] - median[off]) / (median[off] - start):+.1f} %",
        f"{100 * recorded:.0f} %",
    )


def send(endpoint: str, senders: range, start: float, sent: multiprocessing.Queue) -> None:
    """What so many clients would send: in each round a batch each, with a row for itself and two for each neighbour."""
    context = zmq.Context()
    recorders = {sender: Recorder(context, endpoint, sender) for sender in senders}
    for round in range(1, SECONDS * ROUNDS_A_SECOND + 1):
        time.sleep(max(0.0, start + round / ROUNDS_A_SECOND - time.monotonic()))
        for sender, recorder in recorders.items():
            neighbours = [(sender + step) % SENDERS for step in range(1, NEIGHBOURS + 1)]
            recorder.write(
                RoundRecord(sender, round, 0.5, 0.6, 0.9, 12.0, float(round), None, 0.1, 0.7, 0.2),
                *(TrafficRecord(sender, j, round, 2, 2600, 2680, 2700) for j in neighbours),
                *(EdgeRecord(sender, j, round, 0.1, 8.0, 0.0) for j in neighbours),
            )
    late = time.monotonic() - start - SECONDS
    for recorder in recorders.values():
        recorder.close()
    context.term()
    sent.put((late, {sender: recorder.batches for sender, recorder in recorders.items()}))


def collect() -> Iterator[str]:
    """Lines of a list."""
    with new_folder() as folder:
        database, endpoint = folder / "run.sqlite", f"ipc://{folder}/records"
        command = ["-m", "sheafgossip.metrics.collector", "--endpoint", endpoint, "--database", str(database)]
        collector = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True)
        assert collector.stdout
        collector.stdout.readline()  # ready
        watched = psutil.Process(collector.pid)
        sent: multiprocessing.Queue = multiprocessing.Queue()
        start, each = time.monotonic() + 1, SENDERS // SENDING_PROCESSES
        senders = [
            multiprocessing.Process(target=send, args=(endpoint, range(i * each, (i + 1) * each), start, sent))
            for i in range(SENDING_PROCESSES)
        ]
        for sender in senders:
            sender.start()
        memory = []
        while any(sender.is_alive() for sender in senders):
            memory.append((time.monotonic() - start, watched.memory_info().rss / 1e6))
            time.sleep(0.25)
        told = [sent.get() for _ in senders]
        end_of(collector, endpoint, {sender: count for _, batches in told for sender, count in batches.items()})
        took = time.monotonic() - start
        cpu = wait_for_exit(collector)
        counts = "SELECT (SELECT count(*) FROM round) + (SELECT count(*) FROM traffic) + (SELECT count(*) FROM edge)"
        with reading(database) as records:
            (stored,) = records.execute(counts).fetchone()
    wanted = SENDERS * ROUNDS_A_SECOND * SECONDS * (1 + 2 * NEIGHBOURS)
    early = [mb for at, mb in memory if 1 <= at <= 3]
    late = [mb for at, mb in memory if at > SECONDS - 2]
    steps = [after - before for (_, before), (_, after) in pairwise(memory)]
    yield f"records stored: {stored} of {wanted} ({wanted / SECONDS:,.0f} a second); lost: {wanted - stored or 'none'}"
    yield f"the last sender was {max(late_s for late_s, _ in told):.1f} s late; all was stored after {took:.1f} s"
    yield f"CPU of the collector: {cpu:.1f} s, {1e6 * cpu / wanted:.1f} us a record, {100 * cpu / took:.0f} % of a core"
    yield (
        f"memory (RSS): {statistics.median(early):.1f} MB in seconds 1 to 3, {statistics.median(late):.1f} MB in the "
        f"last two; largest step in 0.25 s {max(steps):.1f} MB"
    )


def end_of(collector: subprocess.Popen, endpoint: str, batches: dict[int, int]) -> None:
    """Says the last word, and waits until the collector has heard it."""
    context = zmq.Context()
    last = context.socket(zmq.PUSH)
    last.connect(endpoint)
    last.send(pack_end(batches))
    os.waitid(os.P_PID, collector.pid, os.WEXITED | os.WNOWAIT)
    last.close()
    context.term()


def main() -> None:
    repeats = options(__doc__, repeats=9).parse_args().repeats
    collected = list(collect())
    print("\n".join(collected), flush=True)
    compared = table(
        "run|off|on|ratio of medians|pairs|of the rounds|recorded",
        [compare(name, text, repeats) for name, text in RUNS.items()],
    )
    load = f"{os.cpu_count()} cores, load average {os.getloadavg()[2]:.0f} over the last quarter of an hour"
    text = f"""\
## Runs with and without measuring

CPU seconds of the whole command: launcher, fork server, clients, collector; median (lowest to highest). "Of the rounds"
leaves out what a run of one round takes: loading libraries, preparing, starting. The last column is the sum of what the
processes tell in `resource`, as a share of what the system counts: whatever comes after a process's last sample is
missing from it.

{compared}

Rounds, events and the byte counts of each message are kept in both cases; what is off is told in
[docs/configuration.md](../../docs/configuration.md). What measuring takes is about the same in every round of a
client, so its share falls with what the round computes.

## The collector

{SENDERS} clients with {NEIGHBOURS} neighbours each and {ROUNDS_A_SECOND} rounds a second, for {SECONDS} seconds:

{chr(10).join(f"- {line}" for line in collected)}"""
    write("measuring", f"`make bench-measuring` ({repeats} pairs of runs, on {load})", text)


if __name__ == "__main__":
    main()
