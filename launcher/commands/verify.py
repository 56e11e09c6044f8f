"""``sheafgossip verify``: the recorded bytes of small runs over TCP beside the kernel's counters."""

import math
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from ...metrics.text import say, show
from ...metrics.verification import Verified, render_directions, render_runs, verify_run
from ...transport.connections import counts_bytes
from ..config.sections import ConfigError, RunConfig, validate
from ..studies.folders import new_folder, planned_in
from ..studies.runner import Finished, Observer, run_each
from .outcomes import tell

_LENGTHS = (10, 1_000, 100_000)  # of a short frame, a long one, and one that a socket does not take in one piece


class _Case(NamedTuple):
    length: int
    exchange: str
    keys: bool

    @property
    def name(self) -> str:
        return f"{self.length:,} floats, {self.exchange}{', keys' if self.keys else ''}"

    def config(self, protocol: str) -> RunConfig:
        """Eight clients with four neighbours each, and a model that is just large enough for vectors of the length."""
        hidden = math.ceil((self.length - 10) / 75)  # units of a network with 75 h + 10 parameters
        small = self.length <= 650  # as many as logistic regression on digits has
        gamma = min(1.0, (self.length + 0.5) / (650 if small else 75 * hidden + 10))
        return validate(
            {
                "name": f"{self.name}, {protocol}",
                "clients": 8,
                "rounds": 3,
                "topology": {"kind": "random-regular", "k": 4},
                "data": {"samples": 160},
                "model": {"kind": "logistic"} if small else {"kind": "mlp", "hidden": [hidden]},
                "algorithm": {"name": "sheaf-fmtl", "start": "orthogonal", "gamma": gamma, "exchange": self.exchange},
                "evaluation": {"every": 0},
                "transport": {"protocol": protocol, "keys": self.keys},
                "measuring": {"kernel": protocol == "tcp"},
            }
        )


def verify(floats: Sequence[int] | None, every: bool, out: Path | None) -> int:
    announcer = _Announcer()
    verified, _ = compared_with_kernel(floats, out, announcer)
    if verified:
        show(render_runs(verified))
    if (connections := render_directions(verified, every=every)) is not None:
        show(connections)
    complaints = [complaint for run in verified for complaint in run.complaints]
    for complaint in complaints:
        say(f"error: {complaint}", err=True)
    if announcer.code or complaints:
        return announcer.code or 1
    say(f"all {sum(run.comparison.connections for run in verified)} connections agree to the byte, in both directions")
    return 0


def compared_with_kernel(
    floats: Sequence[int] | None, out: Path | None, observer: Observer
) -> tuple[list[Verified], list[Finished]]:
    """Runs each length with both exchanges, over tcp with and without keys, then over ipc, in folders that are kept
    only in ``out``. Returns the comparisons of those that finished, and how each run ended. Raises ConfigError without
    the kernel's counters."""
    if not counts_bytes():
        raise ConfigError("verify: the kernel of this system does not count the bytes of TCP connections; use Linux")
    lengths = dict.fromkeys(floats or _LENGTHS)
    cases = [_Case(*case) for case in product(lengths, ("two-phase", "fused"), (False, True))]
    configs = [case.config("tcp") for case in cases] + [case.config("ipc") for case in cases if not case.keys]
    temporary = tempfile.TemporaryDirectory(prefix="sheafgossip-verify-")
    with temporary if out is None else new_folder(out, Path("verify")) as root:
        runs = run_each(planned_in(Path(root), configs), observer)
        good = {run.prepared.config.label: run.prepared.folder for run in runs if run.outcome.status == "finish"}
        verified = []
        for case in cases:
            tcp, ipc = good.get(f"{case.name}, tcp"), good.get(f"{case._replace(keys=False).name}, ipc")
            if tcp and ipc:
                verified.append(verify_run(case.name, tcp, ipc, keys=case.keys))
    return verified, runs


class _Announcer(Observer):
    code = 0  # of the worst run so far

    def has_ended(self, finished: Finished) -> None:
        label = finished.prepared.config.label
        self.code = max(self.code, tell([(finished.prepared.folder, finished.outcome, label)]))
        if finished.outcome.status == "finish":
            say(f"{label}: finished", err=True)
