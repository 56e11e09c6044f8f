"""What planning takes: random regular graphs of degree 6, a message an edge and round, slow clients and links."""

import resource
import subprocess
import sys
import time

from common import options, table, write
from networkx import random_regular_graph

from sheafgossip.launcher.planner.scenario import Links, Scenario, Stragglers
from sheafgossip.launcher.planner.simulation import simulate

CASES = ((1000, 1000, 0, 0.0), (1000, 1000, 4, 0.05), (3000, 100, 0, 0.0))  # clients, rounds, staleness, loss


def measure(clients: int, rounds: int, staleness: float, loss: float) -> None:
    """Prints millions of messages, and this process's CPU seconds and GB."""
    graph = random_regular_graph(6, clients, seed=1)
    edges = [(i, j) for i in range(clients) for j in sorted(graph[i])]
    scenario = Scenario(
        0, rounds, tuple(tuple(sorted(graph[i])) for i in range(clients)), dict.fromkeys(edges, (2000,)), staleness,
        deadline_s=1.0 if loss else float("inf"), stragglers=Stragglers("exponential"), uplink=1e6,
        links=dict.fromkeys(edges, Links("lognormal", 0.01, bandwidth=1e6, loss=loss)),
    )  # fmt: skip
    began = time.process_time()
    count = len(simulate(scenario).messages)
    print(count / 1e6, time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--old", help="another checkout's .venv/bin/python, to stand beside")
    rows, pythons = [], list(filter(None, [sys.executable, parser.parse_args().old]))
    for case in CASES:
        told = [subprocess.check_output([each, __file__, *map(str, case)], text=True).split() for each in pythons]
        figures = [f"{float(value):.3g}" for each in told for value in each[1:]]
        rows.append((*case[:3], f"{case[3]:.0%}", f"{float(told[0][0]):.1f}", *figures))
    titles = ["clients|rounds|staleness|lost|million messages|CPU s|GB", "before: CPU s|GB"][: len(pythons)]
    write("planner", "`make bench-planner`", table("|".join(titles), rows))


if __name__ == "__main__":
    measure(*map(int, sys.argv[1:3]), *map(float, sys.argv[3:])) if len(sys.argv) == 5 else main()
