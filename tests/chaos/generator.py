"""Random cases: a configuration in which faults combine freely, constants of the protocol, and who is killed when.

A case is drawn from Hypothesis strategies, so one that fails shrinks; a number (a seed) stands for one case.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import hypothesis.strategies as st
import tomli_w
from hypothesis import HealthCheck, Phase

Tree = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

CONSTANTS: dict[str, tuple[float, ...]] = {
    "window_bytes": (1 << 20, 1 << 10, 1),
    "window_most": (128, 8, 1),
    "soon_s": (0.02, 0.0),
    "heed_every_s": (0.05, 0.005),
    "last_words_s": (1.0, 0.3),
    "last_words_wall_s": (0.5, 0.2),
    "gather_s": (0.25, 0.0),
    "linger_s": (10.0, 3.0),
    "records_a_batch": (2000, 3),
    "forked_at_once": (100, 1),
    "stop_grace_s": (1.5, 0.2),
    "further_failures_s": (0.3, 0.0),
    "commit_every_s": (0.5, 0.0, 3.0),
    "collector_gather_ms": (50, 0),
    "burst": (256, 1),
    "burst_rows": (5000, 10),
}
"""The product's own value, then those to draw from. See transport/constants.py."""


@dataclass(frozen=True)
class Kills:
    """``moments`` are shares of the time that the run takes when it is left alone; after each it is resumed, unless
    clients are killed: then the others go on."""

    what: str = "nothing"
    moments: tuple[float, ...] = ()


@dataclass(frozen=True)
class Case:
    config: Tree
    constants: dict[str, float] = field(default_factory=dict)
    kills: Kills = Kills()

    @property
    def toml(self) -> str:
        """To be run as it is; what is no configuration stands above it."""
        constants = ",".join(f"{name}={value:g}" for name, value in self.constants.items())
        moments = ", ".join(f"{moment:g}" for moment in self.kills.moments)
        lines = [f"# kills: {self.kills.what} {moments}".rstrip()]
        if constants:
            lines.insert(0, f"# SHEAFGOSSIP_TEST_CONSTANTS={constants}")
        return "\n".join([*lines, tomli_w.dumps(self.config)])

    @property
    def title(self) -> str:
        config = self.config
        faults = "+".join(fault["kind"] for fault in config.get("faults", ()))
        return (
            f"{config['time']['clock']}, {config['clients']} clients, {config['rounds']} rounds, "
            f"{config['algorithm']['name']}, staleness {config['time']['staleness']}"
            f"{f', {faults}' if faults else ''}; kills {self.kills.what} {len(self.kills.moments) or ''}".rstrip()
        )


_STRICT = ("d2", "gradient-tracking", "push-sum", "fused")  # every message, in its own round
_PUNCTUAL = ("rotating", "selective-sheaf", "ditto")  # messages may be missing, but not late
_WITH_SERVER = ("fedavg", "ditto", "pfedme", "per-fedavg")
_ON_MAPS = ("sheaf-fmtl", "fixed", "fused", "rotating", "selective-sheaf")
_ALGORITHMS: dict[str, Tree] = {
    "d-psgd": {"name": "d-psgd"},
    "dfedu": {"name": "dfedu", "lam": 0.02},
    "sheaf-fmtl": {"name": "sheaf-fmtl", "gamma": 0.1, "start_scale": 0.1, "lam": 0.05, "eta": 0.02},
    "fixed": {"name": "sheaf-fmtl", "gamma": 0.1, "start": "orthogonal", "eta": 0.0, "lam": 0.05},
    "fedavg": {"name": "fedavg"},
    "ditto": {"name": "ditto"},
    "pfedme": {"name": "pfedme"},
    "per-fedavg": {"name": "per-fedavg"},
    "fused": {
        "name": "sheaf-fmtl",
        "gamma": 0.1,
        "start_scale": 0.1,
        "lam": 0.05,
        "eta": 0.02,
        "exchange": "fused",
    },
    "rotating": {"name": "sheaf-fmtl", "gamma": 0.2, "start": "shared", "eta": 0.0, "lam": 0.05, "rotate_every": 3},
    "selective-sheaf": {"name": "selective-sheaf", "gamma": 0.2},
    "d2": {"name": "d2"},
    "gradient-tracking": {"name": "gradient-tracking"},
    "push-sum": {"name": "push-sum"},
    "local": {"name": "local"},
}
_OFTEN = (*("d-psgd", "dfedu", "sheaf-fmtl", "fixed") * 3, "fedavg")  # those that bear most
_LARGE, _HUGE = 50_000, 500_000  # numbers


@st.composite
def cases(draw: Draw) -> Case:
    kind = draw(st.sampled_from((*_OFTEN, *_ALGORITHMS)))
    clock = draw(st.sampled_from(("virtual", "virtual", "virtual", "wall")))
    model, synthetic, numbers = _model(draw, on_maps=kind in _ON_MAPS)
    clients = draw(st.integers(2, 4 if numbers > _LARGE else 8))
    most = 5 if numbers > _HUGE else 8 if numbers > _LARGE else 40
    rounds = draw(st.integers(3, min(most, 15) if clock == "wall" else most))
    step_s = 0.02 if clock == "wall" else 0.1
    scene = _Scene(draw, kind, clock, clients, rounds, step_s)
    algorithm = dict(_ALGORITHMS[kind])
    if kind in _WITH_SERVER:
        algorithm["fraction"] = draw(st.sampled_from((1.0, 0.6, 0.3)))
    config: Tree = {
        "seed": draw(st.integers(0, 1000)),
        "clients": clients,
        "rounds": rounds,
        "topology": _topology(draw, clients),
        "data": {"dataset": "synthetic", "synthetic": synthetic},
        "model": model,
        "training": _training(draw),
        "algorithm": algorithm,
        "evaluation": {"every": draw(st.sampled_from((1, 0, 3)))},
        "checkpoints": _checkpoints(draw, kind, numbers),
        "transport": _transport(draw, kind),
        "placement": {
            "hosts": min(clients, draw(st.sampled_from((0, 0, 2, 3)))),
            "by": draw(st.sampled_from(("round-robin", "random", "partition"))),
        },
        "measuring": {"every": draw(st.sampled_from((1.0, 0.01)))},
        "time": scene.time(),
        "compute": scene.compute(),
        "stragglers": scene.stragglers(),
        "links": scene.links(numbers * (8 if model["dtype"] == "float64" else 4)),
        "faults": scene.faults(),
        "chaos": scene.chaos(),
    }
    kills = _kills(draw, may_die=kind not in _STRICT)
    if kills.what == "clients":
        config["time"]["deaths"] = "continue"
    constants = {name: draw(st.sampled_from(values[1:])) for name, values in CONSTANTS.items() if draw(_one_in(2))}
    _drop_what_has_no_effect(config, kind)
    return Case({key: value for key, value in config.items() if value != {} and value != []}, constants, kills)


def _drop_what_has_no_effect(config: Tree, kind: str) -> None:
    """A run is refused with it. It is drawn all the same, so that a number stands for the same case as ever."""
    if kind in _WITH_SERVER:
        config["topology"] = {}
    elif kind not in ("d-psgd", "d2", "gradient-tracking") and config["algorithm"].get("weights") != "mixing":
        del config["topology"]["weights"]
    if config["stragglers"].get("kind") not in ("fixed", "on-off"):
        config["stragglers"].pop("factor", None)
    if "crash" not in config["chaos"]:
        config["chaos"].pop("restart", None)
    if "top-k" not in (config["transport"]["codec"], config["transport"]["codec_between"]):
        del config["transport"]["keep"]


def _one_in(count: int) -> st.SearchStrategy[bool]:
    return st.sampled_from((False,) * (count - 1) + (True,))


def _model(draw: Draw, *, on_maps: bool) -> tuple[Tree, Tree, int]:
    """[model], [data.synthetic], and how many numbers a vector has."""
    dimensions, classes = draw(st.sampled_from((20, 1, 4, 100))), draw(st.sampled_from((2, 3)))
    model: Tree = {"kind": "logistic", "dtype": draw(st.sampled_from(("float32", "float64")))}
    numbers = classes * (dimensions + 1)
    widths = (4, 30) if on_maps else (4, 30, 900, 900, 5_000, 40_000)
    if draw(st.booleans()):
        width = draw(st.sampled_from(widths))
        if width > 1000:
            dimensions = 20
        model |= {"kind": "mlp", "hidden": [width]}
        numbers = width * (dimensions + 1) + classes * (width + 1)
    synthetic = {"samples": 12, "groups": 1, "dimensions": dimensions, "classes": classes}
    return model, synthetic, numbers


def _topology(draw: Draw, clients: int) -> Tree:
    kinds: dict[str, Tree] = {
        "complete": {},
        "star": {},
        "erdos-renyi": {"p": 0.6},
        "barabasi-albert": {"m": 1},
        **({"ring": {}, "watts-strogatz": {"k": 2}, "random-regular": {"k": 2}} if clients > 2 else {}),
        **({"torus": {}} if clients in (4, 6, 8) else {}),
    }
    kind = draw(st.sampled_from(tuple(kinds)))
    weights = draw(st.sampled_from(("metropolis-hastings", "max-degree")))
    return {"kind": kind, "weights": weights, **kinds[kind]}


def _training(draw: Draw) -> Tree:
    work = draw(st.sampled_from(("full", "steps", "epochs")))
    more = {"full": {}, "steps": {"steps": 2, "batch_size": 4}, "epochs": {"epochs": 1, "batch_size": 4}}[work]
    return {"work": work, "alpha": 0.01, **more}


def _checkpoints(draw: Draw, kind: str, numbers: int) -> Tree:
    every = draw(st.sampled_from((3, 0, 1, 2, 7)))
    return {"every": every, "save_maps": kind in _ON_MAPS and numbers < 1000 and draw(_one_in(3))}


def _transport(draw: Draw, kind: str) -> Tree:
    if kind in ("d2", "gradient-tracking", "push-sum"):
        codecs: tuple[str, ...] = ("none",)
    else:
        codecs = ("none", "none", "float16", "bfloat16", "int8")
        codecs += ("top-k",) if kind in ("dfedu", "sheaf-fmtl", "fixed", "local") else ()
    way = draw(st.sampled_from(({"protocol": "ipc"}, {"protocol": "tcp"}, {"protocol": "tcp", "keys": False})))
    between = draw(st.sampled_from(("same", *codecs)))
    return {**way, "codec": draw(st.sampled_from(codecs)), "codec_between": between, "keep": 0.2, "timeout": 30.0}


class _Scene:
    """The tables of the scenario. Times are multiples of a round's local work, so that they fall into rounds."""

    def __init__(self, draw: Draw, kind: str, clock: str, clients: int, rounds: int, step_s: float):
        self._draw = draw
        self._clock = clock
        self._clients, self._rounds, self._step_s = clients, rounds, step_s
        self._server = kind in _WITH_SERVER
        self._strict = kind in _STRICT
        self._punctual = kind in _PUNCTUAL
        loose = not (self._strict or self._punctual or self._server)
        self._staleness = draw(st.sampled_from((0, 1, 4, 8, 8, "inf", "inf"))) if loose else 0
        self._loses = not self._strict and draw(st.booleans())
        may_wait = not self._strict and not (self._punctual and clock == "wall" and not self._server)
        self._deadline = may_wait and (self._loses or draw(st.booleans()))
        self._unlucky = st.integers(0, clients - 1) if draw(_one_in(3)) else st.integers(0, min(1, clients - 1))

    def _rounds_of_work(self, *numbers: float) -> float:
        """So many, in seconds."""
        return round(self._draw(st.sampled_from(numbers)) * self._step_s, 9)

    def time(self) -> Tree:
        time: Tree = {"clock": self._clock, "staleness": self._staleness}
        if self._deadline:
            time["deadline_s"] = self._rounds_of_work(2, 0.5, 7, 30)
        if self._deadline or self._staleness == "inf":
            stale = () if self._punctual or self._strict else ("stale",)
            time["silence"] = self._draw(st.sampled_from(("skip", "wait", *stale)))
        if self._clock == "virtual":
            time["notice_s"] = self._rounds_of_work(0, 0.7, 5)
        return time

    def compute(self) -> Tree:
        slowdown = self._draw(st.sampled_from(([], [1.0, 3.0], [1.0, 1.0, 1.5])))
        return {"step_s": self._step_s, "slowdown": slowdown}

    def stragglers(self) -> Tree:
        kind = self._draw(st.sampled_from(("none", "fixed", "lognormal", "exponential", "pareto", "on-off")))
        if kind == "none":
            return {}
        at_most = {"factor": 3.0 if self._clock == "wall" else 10.0}
        spells = {"on_s": 3 * self._step_s, "off_s": 5 * self._step_s} if kind == "on-off" else {}
        return {"kind": kind, "fraction": self._draw(st.sampled_from((0.3, 1.0))), **at_most, **spells}

    def links(self, vector_bytes: int) -> Tree:
        free = self._clock == "virtual" or self._staleness == "inf"
        latency_s = self._rounds_of_work(0, 0.3, 1, 3, *((30, 100) if free else ()))
        kind = self._draw(st.sampled_from(("fixed", "uniform", "lognormal")))
        links: Tree = {"latency": kind, "latency_s": latency_s}
        if kind == "uniform":
            links["latency_high_s"] = 2 * latency_s
        for name in ("bandwidth", "uplink"):
            if self._draw(_one_in(4)):  # a vector takes so many rounds
                links[name] = round(vector_bytes / self._rounds_of_work(0.1, 1), 3)
        if self._loses and self._draw(st.booleans()):
            links["loss"] = self._draw(st.sampled_from((0.05, 0.3)))
        return links

    def faults(self) -> list[Tree]:
        kinds = ["slow", "duplicate", "delay", "reorder"]
        if not self._strict:
            kinds += ["crash", "crash", "crash", "join", "join", "leave"]
        if self._loses:
            kinds += ["loss", "cut", "partition"]
        drawn = [self._fault(self._draw(st.sampled_from(kinds))) for _ in range(self._draw(st.integers(0, 6)))]
        last_joins = {fault["clients"][0]: fault for fault in drawn if fault["kind"] == "join"}  # a client joins once
        return [fault for fault in drawn if fault["kind"] != "join" or fault is last_joins[fault["clients"][0]]]

    def _fault(self, kind: str) -> Tree:
        draw = self._draw
        fault: Tree = {"kind": kind}
        if kind in ("crash", "leave", "join"):
            fault["clients"] = [draw(self._unlucky)]
            if draw(_one_in(4)):
                fault["at_s"] = self._second()
            else:
                fault["at_round"] = self._round()
            if kind != "join":
                comeback = draw(st.sampled_from(("rounds", "seconds", "never")))
                if comeback == "rounds":
                    fault["restart_after"] = draw(st.sampled_from((1, 2, 5)))
                elif comeback == "seconds":
                    fault["restart_after_s"] = self._rounds_of_work(0, 0.5, 3, 10)
            return fault
        if draw(st.booleans()):
            fault["rounds"] = sorted((self._round(), self._round()))
        else:
            fault["seconds"] = sorted((self._second(), self._second()))
        if kind == "slow":
            fault |= {"clients": [draw(self._unlucky)], "factor": draw(st.sampled_from((2.0, 5.0)))}
        elif kind == "partition":
            half = draw(st.integers(1, self._clients - 1))
            fault["groups"] = [list(range(half)), list(range(half, self._clients))]
        else:
            if draw(st.booleans()) or self._server:
                fault["clients"] = [draw(self._unlucky)]
            else:
                fault["edges"] = [[0, draw(st.integers(1, self._clients - 1))]]
            if kind != "cut":
                fault["probability"] = draw(st.sampled_from((1.0, 0.5, 0.1)))
            if kind in ("delay", "reorder"):
                fault["delay_s"] = self._rounds_of_work(0.5, 2, *((20,) if self._clock == "virtual" else ()))
        return fault

    def _round(self) -> int:
        return self._draw(st.integers(1, self._rounds))

    def _second(self) -> float:
        return round(self._draw(st.integers(0, 2 * self._rounds)) * self._step_s, 9)

    def chaos(self) -> Tree:
        if self._strict or not self._draw(_one_in(4)):
            return {}
        names = ("crash", "restart", "leave", "join", "slow", "duplicate")
        names += ("delay",) if self._clock == "virtual" else ()
        names += ("cut", "partition", "loss") if self._loses else ()
        rates = {name: self._draw(st.sampled_from((0.0, 0.1, 0.3))) for name in names}
        return {name: rate for name, rate in rates.items() if rate}


def _kills(draw: Draw, *, may_die: bool) -> Kills:
    some = ("clients", "launcher") if may_die else ("launcher",)
    what = draw(st.sampled_from(("nothing", "everything", *some, "everything")))
    if what == "nothing":
        return Kills()
    moments = draw(st.lists(st.sampled_from([n / 20 for n in range(4, 21)]), min_size=1, max_size=2))
    return Kills(what, tuple(moments))


def _settings(**more: Any) -> hypothesis.settings:
    """Hypothesis always begins with the simplest case of all, which says nothing; the second is what the seed draws."""
    quiet: Any = {"database": None, "deadline": None, "suppress_health_check": list(HealthCheck)}
    return hypothesis.settings(max_examples=2, **quiet, **more)


def case_of(seed: int) -> Case:
    drawn: list[Case] = []
    given = hypothesis.given(cases())(lambda case: drawn.append(case))
    hypothesis.seed(seed)(_settings(phases=[Phase.generate])(given))()
    return drawn[-1]


def shrink(seed: int, check: Callable[[Case], None]) -> None:
    """Looks for a simpler case than the seed's on which ``check`` raises, for five minutes at most; raises with it."""
    first = True

    def probe(case: Case) -> None:
        nonlocal first
        if first:
            first = False
        else:
            check(case)

    given = hypothesis.given(cases())(probe)
    hypothesis.seed(seed)(_settings(phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False)(given))()
