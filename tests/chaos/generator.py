"""Random cases: a configuration in which faults combine freely, constants of the protocol, and who is killed when. A
case is a series of choices, of which the first option is the simplest, so one that fails can be made simpler; a number
(a seed) stands for one case."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from sheafgossip import Traits
from sheafgossip.node.algorithms import ALGORITHMS

Tree = dict[str, Any]

CONSTANTS: dict[str, tuple[float, ...]] = {
    "window_bytes": (1 << 10, 1),
    "window_most": (8, 1),
    "soon_s": (0.0,),
    "look_every_s": (0.005,),
    "last_words_s": (0.3,),
    "last_words_wall_s": (0.2,),
    "gather_s": (0.0,),
    "linger_s": (3.0,),
    "records_a_batch": (3,),
    "forked_at_once": (1,),
    "stop_grace_s": (0.2,),
    "further_failures_s": (0.0,),
    "commit_every_s": (0.0, 3.0),
    "collector_gather_ms": (0,),
    "burst": (1,),
    "burst_rows": (10,),
}
"""Values beside the product's own. See transport/environment.py."""

_MAPS: Tree = {"name": "sheaf-fmtl", "gamma": 0.1, "start_scale": 0.1, "lam": 0.05, "eta": 0.02}
_PLAIN = ("local", "d-psgd", "d2", "gradient-tracking", "push-sum", "dfedpgp", "dfedavgm", "ad-psgd")
_PLAIN += ("fedavg", "ditto", "pfedme", "per-fedavg", "apfl", "fedavg-ft", "fedprox", "scaffold", "moon", "fedmtl")
_PLAIN += ("sfl", "fedproto", "fedgh")
_COMPRESSED: Tree = {"keep": (0.2, 1.0), "compression": ("top-k", "random-k")}
_METHODS: dict[str, Tree] = {  # those with settings; of several values one is drawn
    "pairwise": {"order": ("random", "cyclic")},
    "epidemic": {"sampling": ("oracle", "local"), "k": 2},
    "teleportation": {"active": (2, 1, 4), "graph": ("ring", "complete")},
    "divshare": {"fragments": (2, 1, 5)},
    "choco-sgd": _COMPRESSED,
    "beer": _COMPRESSED,
    "fedu": {"relations": ("all", "topology")},
    "ifca": {"k": (2, 3)},
    "fedsem": {"k": (2, 3)},
    "dfca": {"k": (2, 3)},
    "facade": {"k": (2, 3)},
    "fedper": {"server": (True, False)},
    "fedbn": {"server": (True, False)},
    "fedrep": {"server": (True, False), "head_passes": 2},
    "dfedsam": {"gossip_steps": (1, 2)},
    "dispfl": {"density": (0.5, 1.0)},
    "dac": {"sample": (2, 1)},
    "pens": {"sample": 2, "top": (2, 1), "first_stage": (2, 20)},
    "dpfl": {"choose_round": (2, 5), "budget": (4, 1)},
    "dfedu": {"lam": 0.02},
    "sheaf-fmtl": _MAPS,
    "fixed": {"name": "sheaf-fmtl", "gamma": 0.1, "start": "orthogonal", "eta": 0.0, "lam": 0.05},
    "fused": _MAPS | {"exchange": "fused"},
    "rotating": {"name": "sheaf-fmtl", "gamma": 0.2, "start": "shared", "eta": 0.0, "lam": 0.05, "rotate_every": 3},
    "selective-sheaf": {"gamma": 0.2},
    "prototype-sheaf": {
        "gamma": 0.2,
        "compare": ("inputs", "features"),
        "sketch": (8, 200),
        "compare_every": (0, 3),
        "seek": (0, 4),
    },
    "seeking": {"name": "selective-sheaf", "gamma": 0.2, "seek": True, "probe_every": 2},
}
_OFTEN = (*("d-psgd", "dfedu", "sheaf-fmtl", "fixed") * 3, "fedavg")  # those that tolerate most
_OTHERS = ("k", "fragments", "active")  # no more than there are other clients
_ON_BODIES = ("facade", "fedproto", "fedgh", "fedper", "fedrep", "dfedpgp", "moon")
_NORMALIZED = str(Path(__file__).parents[1] / "methods" / "normalized.py") + ":make"
_ANYTHING = {"tolerates": "late", "codec_may_drop": "entries", "changing_graphs": True, "directed_graphs": "all"}
_LARGE, _HUGE = 50_000, 500_000  # numbers


@dataclass(frozen=True)
class Case:
    """What is killed, if anything, and when: the moments are shares of the time that the run takes when it is left
    alone. After each it is resumed, unless clients are killed: then the others go on."""

    config: Tree
    constants: dict[str, float] = field(default_factory=dict)
    killed: str = "nothing"
    moments: tuple[float, ...] = ()

    @property
    def variable(self) -> str:
        return ",".join(f"{name}={value:g}" for name, value in self.constants.items())

    @property
    def method(self) -> str:
        return self.config["algorithm"]["name"]

    @property
    def toml(self) -> str:
        """To be run as it is; what is no configuration stands above it."""
        lines = [f"# SHEAFGOSSIP_TEST_CONSTANTS={self.variable}"] if self.constants else []
        kills = f"# kills: {self.killed} {', '.join(f'{moment:g}' for moment in self.moments)}"
        return "\n".join([*lines, kills.rstrip(), tomli_w.dumps(self.config)])

    @property
    def title(self) -> str:
        time, faults = self.config["time"], "+".join(fault["kind"] for fault in self.config.get("faults", ()))
        about = f"{self.config['clients']} clients, {self.config['rounds']} rounds, {self.method}"
        struck = f"faults {faults or 'none'}; kills {self.killed} {len(self.moments)}"
        return f"{time['clock']}, {about}, staleness {time['staleness']}, {struck}"


class Choices:
    """Made at random, by a seed, or as given: by their numbers, and then the simplest."""

    def __init__(self, source: int | Sequence[int]):
        self._random = random.Random(source) if isinstance(source, int) else None
        self._given = () if isinstance(source, int) else source
        self.taken: list[int] = []

    def __call__(self, *options: Any) -> Any:
        given = self._given[len(self.taken)] if len(self.taken) < len(self._given) else 0
        number = self._random.randrange(len(options)) if self._random else given
        self.taken.append(min(number, len(options) - 1))
        return options[self.taken[-1]]

    def one_in(self, count: int) -> bool:
        return self(*(False,) * (count - 1), True)

    def between(self, least: int, most: int) -> int:
        return self(*range(least, most + 1))


def case_of(seed: int) -> Case:
    return _case(Choices(seed))


def simpler_case(seed: int, is_wrong: Callable[[Case], bool], seconds: float = 300) -> Case | None:
    """The simplest case found in that time which is as wrong as the seed's; None where that is not wrong."""
    choices = Choices(seed)
    best, taken = _case(choices), choices.taken
    if not is_wrong(best):
        return None
    place, end = 0, time.monotonic() + seconds
    while place < len(taken) and time.monotonic() < end:
        case = _case(tried := Choices([*taken[:place], 0, *taken[place + 1 :]]))
        if taken[place] and case != best and is_wrong(case):
            best, taken = case, tried.taken
        place += 1
    return best


def _case(choose: Choices) -> Case:
    kind = choose(*_OFTEN, *_PLAIN, *_METHODS)
    clients = choose.between(2, 8)
    settings = _METHODS.get(kind, {})
    algorithm = {"name": kind} | {k: choose(*v) if isinstance(v, tuple) else v for k, v in settings.items()}
    algorithm |= {key: min(algorithm[key], clients - 1) for key in _OTHERS if key in algorithm}
    product = ALGORITHMS[algorithm["name"]]
    traits = product(**algorithm).traits
    alone = traits.server == "none"
    if choose.one_in(15):  # mostly to be refused
        traits = replace(traits, meets=False, **_ANYTHING)
    clock = choose("virtual", "virtual", "virtual", *["wall"] * (not traits.meets))
    model, synthetic, numbers = _model(choose, kind, on_maps=traits.has_maps)
    clients = min(clients, 4) if numbers > _LARGE else clients
    most = 5 if numbers > _HUGE else 8 if numbers > _LARGE else 40
    rounds = choose.between(3, min(most, 15) if clock == "wall" else most)
    work = choose("full", "steps", "epochs")
    config: Tree = {
        "seed": choose.between(0, 1000),
        "clients": clients,
        "rounds": rounds,
        "topology": _topology(choose, clients, traits) if alone or traits.reads_topology else {},
        "data": {"dataset": "synthetic", "synthetic": synthetic},
        "model": model,
        "training": {"work": work, "alpha": 0.01}
        | {"full": {}, "steps": {"steps": 2, "batch_size": 4}, "epochs": {"epochs": 1, "batch_size": 4}}[work],
        "algorithm": algorithm,
        "evaluation": {"every": choose(1, 0, 3)},
        "checkpoints": {"every": choose(3, 0, 1, 2, 7)},
        "transport": _transport(choose, traits),
        "placement": {"hosts": min(clients, choose(0, 0, 2, 3)), "by": choose("round-robin", "random", "partition")},
        "measuring": {"every": choose(1.0, 0.01)},
        **_Scene(choose, traits, clock, clients, rounds).tables(numbers * (8 if model["dtype"] == "float64" else 4)),
    }
    if traits.has_maps and numbers < 1000:
        config["checkpoints"]["save_maps"] = choose.one_in(3)
    if not alone:
        algorithm["fraction"] = choose(1.0, 0.6, 0.3)
    if alone and traits.mixes and not config["topology"].get("directed"):
        config["topology"]["weights"] = choose("metropolis-hastings", "max-degree")
    killed = choose("nothing", "everything", "launcher", *["clients"] * (traits.tolerates != "nothing"), "everything")
    moments = tuple(choose(*(n / 20 for n in range(4, 21))) for _ in range(choose(1, 2))) if killed != "nothing" else ()
    if killed == "clients":
        config["time"]["deaths"] = "continue"
    constants = {name: choose(*values) for name, values in CONSTANTS.items() if choose.one_in(2)}
    config["links"] |= _shared_links(choose, clients, numbers * 8 / config["compute"]["step_s"])
    attack = _attack(choose, clients, rounds, others_go_on="deadline_s" in config["time"])
    if choose.one_in(4):
        config["attack"] = attack
    if clock == "virtual" and not traits.reads_samples and kind != "fedbn" and choose.one_in(4):
        config["privacy"] = {"clip": choose(1.0, 0.1), "noise": choose(0.5, 2.0)}
        calm = killed != "clients" and not {"faults", "chaos"} & {key for key, value in config.items() if value}
        if alone and calm and "redraw_every" not in config["topology"]:
            config["privacy"] |= choose({}, {"correlated": 0.5})
    return Case({key: value for key, value in config.items() if value not in ({}, [])}, constants, killed, moments)


def _model(choose: Choices, kind: str, *, on_maps: bool) -> tuple[Tree, Tree, int]:
    """[model], [data.synthetic], and how many numbers a vector has."""
    dimensions, classes = choose(20, 1, 4, 100), choose(2, 3)
    model: Tree = {"kind": "logistic", "dtype": choose("float32", "float64")}
    numbers = classes * (dimensions + 1)
    if kind == "fedbn":
        model = {"use": _NORMALIZED, "dtype": model["dtype"]}
        numbers += 10 * dimensions
    elif choose(*[False] * (kind not in _ON_BODIES), True):
        width = choose(4, 30, *() if on_maps else (900, 900, 5_000, 40_000))
        dimensions = 20 if width > 1000 else dimensions
        model |= {"kind": "mlp", "hidden": [width]}
        numbers = width * (dimensions + 1) + classes * (width + 1)
    return model, {"samples": 12, "groups": 1, "dimensions": dimensions, "classes": classes}, numbers


def _attack(choose: Choices, clients: int, rounds: int, *, others_go_on: bool) -> Tree:
    """Of those that every method may meet; they make no honest model grow without end."""
    kinds = [{"kind": kind} for kind in ("replay", "zeros", "label-flip", *("silence",) * others_go_on)]
    kinds += [{"kind": kind, "strength": 0.5} for kind in ("sign-flip", "noise", "equivocation")]
    who = choose({"clients": [choose.between(0, clients - 1)]}, {"fraction": 0.3})
    return choose(*kinds) | who | {"from_round": choose(1, choose.between(1, rounds))}


def _shared_links(choose: Choices, clients: int, per_step: float) -> Tree:
    """A vector takes up to a fifth of a round; ``per_step`` bytes a second would take a whole one."""
    links: Tree = {"downlink": per_step * choose(10, 5)} if choose.one_in(4) else {}
    if choose.one_in(4):
        behind = {"clients": list(range(choose.between(1, clients)))}
        links["groups"] = [behind | {"capacity": per_step * choose(10, 5), "direction": choose("both", "in", "out")}]
    return links


def _topology(choose: Choices, clients: int, traits: Traits) -> Tree:
    if traits.changing_graphs and choose.one_in(2):
        random: Tree = {"kind": "erdos-renyi", "p": 0.6, "redraw_every": choose(1, 2, 5)}
        kinds = [random, {"kind": "one-peer-exponential"}, {"kind": "exponential"}, {"kind": "ring", "directed": True}]
        return choose(*kinds, *[random | {"directed": True}] * (traits.directed_graphs == "all"))
    kinds: list[Tree] = [{"kind": "complete"}, {"kind": "star"}, {"kind": "erdos-renyi", "p": 0.6}]
    kinds.append({"kind": "barabasi-albert", "m": 1})
    if clients > 2:
        kinds += {"kind": "ring"}, {"kind": "watts-strogatz", "k": 2}, {"kind": "random-regular", "k": 2}
    return choose(*kinds, *[{"kind": "torus"}] * (clients in (4, 6, 8)))


def _transport(choose: Choices, traits: Traits) -> Tree:
    codecs: tuple[str, ...] = ("none",)
    if traits.codec_may_drop != "nothing":
        codecs = ("none", "none", "float16", "bfloat16", "int8")
        codecs += ("top-k",) if traits.codec_may_drop == "entries" else ()
    protocol = choose({"protocol": "ipc"}, {"protocol": "tcp"}, {"protocol": "tcp", "keys": False})
    codec, between = choose(*codecs), choose("same", *codecs)
    keep = {"keep": 0.2} if "top-k" in (codec, between) else {}
    return {**protocol, "codec": codec, "codec_between": between, "timeout": 30.0, **keep}


class _Scene:
    """The tables of the scenario. Times are multiples of a round's local work, so that they fall into rounds."""

    def __init__(self, choose: Choices, traits: Traits, clock: str, clients: int, rounds: int):
        self._choose, self._clients, self._rounds = choose, clients, rounds
        self._virtual, self._step_s = clock == "virtual", 0.1 if clock == "virtual" else 0.02
        self._server, self._strict = traits.server == "answers", traits.tolerates == "nothing"
        self._punctual = traits.tolerates == "missing" or traits.meets
        loose = not (self._strict or self._punctual or self._server)
        self._staleness = choose(0, 1, 4, 8, 8, "inf", "inf") if loose else 0
        self._loses = not self._strict and choose(False, True)
        may_wait = not self._strict and (self._virtual or self._server or not self._punctual)
        self._deadline = may_wait and (self._loses or choose(False, True))
        self._unlucky = clients if choose.one_in(3) else min(2, clients)  # so many may be struck

    def tables(self, vector_bytes: int) -> Tree:
        return {
            "time": self._time(),
            "compute": {"step_s": self._step_s, "slowdown": self._choose([], [1.0, 3.0], [1.0, 1.0, 1.5])},
            "stragglers": self._stragglers(),
            "links": self._links(vector_bytes),
            "faults": self._faults(),
            "chaos": self._chaos(),
        }

    def _work(self, *numbers: float) -> float:
        """So many rounds of it, in seconds."""
        return round(self._choose(*numbers) * self._step_s, 9)

    def _time(self) -> Tree:
        time: Tree = {"clock": "virtual" if self._virtual else "wall", "staleness": self._staleness}
        if self._deadline:
            time["deadline_s"] = self._work(2, 0.5, 7, 30)
        if self._deadline or self._staleness == "inf":
            time["silence"] = self._choose("skip", "wait", *() if self._punctual or self._strict else ("stale",))
        return time | ({"notice_s": self._work(0, 0.7, 5)} if self._virtual else {})

    def _stragglers(self) -> Tree:
        kind = self._choose("none", "fixed", "lognormal", "exponential", "pareto", "on-off")
        more: Tree = {"factor": 10.0 if self._virtual else 3.0} if kind in ("fixed", "on-off") else {}
        more |= {"on_s": 3 * self._step_s, "off_s": 5 * self._step_s} if kind == "on-off" else {}
        return {"kind": kind, "fraction": self._choose(0.3, 1.0), **more} if kind != "none" else {}

    def _links(self, vector_bytes: int) -> Tree:
        long = (30, 100) if self._virtual or self._staleness == "inf" else ()
        links: Tree = {"latency": self._choose("fixed", "uniform", "lognormal")}
        links["latency_s"] = self._work(0, 0.3, 1, 3, *long)
        if links["latency"] == "uniform":
            links["latency_high_s"] = 2 * links["latency_s"]
        for name in ("bandwidth", "uplink"):
            if self._choose.one_in(4):  # a vector takes so many rounds
                links[name] = round(vector_bytes / self._work(0.1, 1), 3)
        if self._loses and self._choose(False, True):
            links["loss"] = self._choose(0.05, 0.3)
        return links

    def _faults(self) -> list[Tree]:
        kinds = ["slow", "duplicate", "delay", "reorder"]
        kinds += [] if self._strict else ["crash", "crash", "crash", "join", "join", "leave"]
        kinds += ["loss", "cut", "partition"] if self._loses else []
        drawn = [self._fault(self._choose(*kinds)) for _ in range(self._choose.between(0, 6))]
        last_joins = {fault["clients"][0]: fault for fault in drawn if fault["kind"] == "join"}  # a client joins once
        return [fault for fault in drawn if fault["kind"] != "join" or fault is last_joins[fault["clients"][0]]]

    def _fault(self, kind: str) -> Tree:
        choose, fault = self._choose, {"kind": kind}
        struck = {"clients": [choose.between(0, self._unlucky - 1)]}
        if kind in ("crash", "leave", "join"):
            when = {"at_s": self._second()} if choose.one_in(4) else {"at_round": choose.between(1, self._rounds)}
            back = choose(0, 1, 2) if kind != "join" else 0
            after = {}, {"restart_after": choose(1, 2, 5)}, {"restart_after_s": self._work(0, 0.5, 3, 10)}
            return fault | struck | when | after[back]
        spans = [[choose.between(1, self._rounds) for _ in range(2)], [self._second() for _ in range(2)]]
        fault |= choose({"rounds": sorted(spans[0])}, {"seconds": sorted(spans[1])})
        if kind == "slow":
            return fault | struck | {"factor": choose(2.0, 5.0)}
        if kind == "partition":
            half = choose.between(1, self._clients - 1)
            return fault | {"groups": [list(range(half)), list(range(half, self._clients))]}
        if not self._server and not choose(True, False):
            struck = {"edges": [[0, choose.between(1, self._clients - 1)]]}
        fault |= struck | ({"probability": choose(1.0, 0.5, 0.1)} if kind != "cut" else {})
        return fault | ({"delay_s": self._work(0.5, 2, *(20,) * self._virtual)} if kind in ("delay", "reorder") else {})

    def _second(self) -> float:
        return self._work(*range(2 * self._rounds + 1))

    def _chaos(self) -> Tree:
        if self._strict or not self._choose.one_in(4):
            return {}
        names = ["crash", "leave", "join", "slow", "duplicate"]
        names += ["delay"] * self._virtual + ["cut", "partition", "loss"] * self._loses
        rates = {name: rate for name in names if (rate := self._choose(0.0, 0.1, 0.3))}
        return rates | ({"restart": self._choose(0.0, 0.1, 0.3)} if "crash" in rates else {})
