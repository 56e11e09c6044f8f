"""What a finished run must have on record, worked out from its configuration, its plan and its shards alone.

Each check yields a line for every difference. Nothing here imports the product.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from safetensors.numpy import load_file

from . import wire
from .records import Records, number_of

_SHOWN = 6
_ENDS = ("crash", "leave")
_BEGINS = ("restart", "join")


class Checker:
    """``killed`` are clients that died without being told to, in a run that goes on without them; ``failed``: the run
    has been taken up after a failure."""

    def __init__(self, records: Records, killed: frozenset[int] = frozenset(), *, failed: bool = False):
        self.records = records
        self.killed = killed
        self.failed = failed
        self._rows = records.rows
        self.config = config = records.config
        self.virtual = config["time"]["clock"] == "virtual"
        self.has_server = len(records.plan) > config["clients"]
        self.server = config["clients"] if self.has_server else -1
        self.plan = records.plan
        self.rounds = config["rounds"]
        self.planned = {
            (node, row + 1) for node, part in self.plan.items() for row in np.flatnonzero(~np.isnan(part["start"]))
        }
        """(node, round) of all that is to be done."""
        self.steady = not killed and self.virtual  # all that the plan says is so, to the byte
        self.comes_and_goes = bool(killed) or any(
            ((part["to_life"] != 1).any() or np.isnan(part["start"]).any()) for part in self.plan.values()
        )

    def differences(self) -> Iterator[str]:
        for check in (self.end, self.done, self.moments, self.traffic, self.opened, self.used, self.fates, self.states):
            name = check.__name__
            found = list(check())
            yield from (f"{name}: {line}" for line in found[:_SHOWN])
            if len(found) > _SHOWN:
                yield f"{name}: and {len(found) - _SHOWN} more"

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> Iterator[str]:
        events = self._rows("SELECT node, kind, detail FROM event")
        ends = [kind for node, kind, _ in events if node == -1 and kind in ("finish", "failure")]
        if ends[-1:] != ["finish"] or (len(ends) > 1 and not self.failed):
            yield f"the launcher's last words are {ends}"
        for node, kind, detail in events:
            if kind == "host-lost" or (kind == "lost-records" and not self.failed):
                yield f"{kind} of {node}: {detail}"
            if kind == "death" and node not in self.killed:
                yield f"death of client {node}, which nobody killed: {detail}"
            if kind == "drop" and not (detail.endswith("neighbour is gone, message not sent") and self.comes_and_goes):
                yield f"drop by {node}: {detail}"

    # -- rounds --------------------------------------------------------------------------------------------------------

    def done(self) -> Iterator[str]:
        """Who has completed which round, each once."""
        rows = self._rows("SELECT node, round, train_loss, theta_norm FROM round")
        found = {(node, round) for node, round, *_ in rows if round}
        expected = self.planned if self.plan else self._everything()
        spared = {(node, round) for node, round in expected - found if node in self.killed}
        yield from _differ("rounds", expected - spared, found)
        for node, rounds in _by_first(spared).items():
            if any((node, later) in found for later in range(min(rounds), self.rounds + 1)):
                yield f"client {node} was killed, but has rounds after round {min(rounds)}"
        starts = {node for node, round, *_ in rows if round == 0}
        yield from _differ("starts", self._there_at_first() - self.killed, starts - self._may_start() - self.killed)
        for node, round, loss, norm in rows:
            if norm is None or not math.isfinite(norm) or (loss is not None and not math.isfinite(loss)):
                yield f"client {node} in round {round}: loss {loss}, norm {norm}"

    def _everything(self) -> set[tuple[int, int]]:
        return {(node, round) for node in range(self.config["clients"]) for round in range(1, self.rounds + 1)}

    def _joiners(self) -> set[int]:
        return {node for fault in self.config.get("faults", ()) if fault["kind"] == "join" for node in fault["clients"]}

    def _may_start(self) -> set[int]:
        """Those who may or may not have been there at first: late for round 1, or by a draw."""
        drawn = set(range(self.config["clients"])) if self.config.get("chaos", {}).get("join") else set()
        return {node for node in self._joiners() | drawn if (node, 1) in self.planned or node in drawn}

    def _there_at_first(self) -> set[int]:
        everyone = set(self.plan) or set(range(self.config["clients"]))
        return everyone - self._joiners() - self._may_start()

    def moments(self) -> Iterator[str]:
        """On the virtual clock the records' times are the plan's."""
        if not (self.plan and self.virtual):
            return
        for node, round, virtual_s, idle_s, whom, metric in self._rows(
            "SELECT node, round, virtual_s, idle_s, waited_for, test_metric FROM round"
        ):
            part, row = self.plan[node], round - 1
            expected: tuple[float | None, ...] = (0.0, None, None)
            if round:
                waited = int(part["waited_for"][row])
                end = float(part["end"][row])
                if (
                    metric is not None and part["shows"][row].any() and virtual_s != end
                ):  # what was evaluated came later
                    end = max(end, float(part["shown_at"][row]))
                expected = end, float(part["idle"][row]), None if waited < 0 else waited
            if (virtual_s, idle_s, whom) != expected:
                yield f"client {node}, round {round}: {(virtual_s, idle_s, whom)}, planned {expected}"

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def traffic(self) -> Iterator[str]:
        rows = self._rows("SELECT src, dst, round, messages, payload_bytes, message_bytes, wire_bytes FROM traffic")
        found = {row[:3]: wire.Weight(*row[3:]) for row in rows}
        hosts = dict(self._rows("SELECT node, host FROM node WHERE node >= 0"))
        expected: defaultdict[tuple[int, int, int], wire.Weight] = defaultdict(lambda: wire.NOTHING)
        of_one: dict[tuple[int, int, int], wire.Weight] = {}
        for src, part in self.plan.items():
            for row, phase, place in np.argwhere(part["copies"] >= 0):
                dst, round = int(part["neighbours"][place]), int(row) + 1
                key = src, dst, round
                if (src, round) not in self.planned:
                    continue
                weight = wire.weigh(self.config, src, dst, round, int(phase), remote=hosts.get(src) != hosts.get(dst))
                of_one[key] = weight
                if copies := int(part["copies"][row, phase, place]):
                    expected[key] = expected[key] + weight.times(copies)
        quiet = self.config["algorithm"]["name"] == "selective-sheaf"
        if self.plan and self.steady and not quiet:
            yield from _differ("traffic", set(expected.items()), set(found.items()))
            return
        loose = self.has_server or self.comes_and_goes
        for key, weight in found.items() if self.plan else ():
            if key not in of_one:
                yield f"{key}: {weight}, but nothing is sent there"
            elif weight != of_one[key].times(weight.messages):
                yield f"{key}: {weight}, but one weighs {of_one[key]}"
            elif weight.messages > expected[key].messages and not loose:
                yield f"{key}: {weight.messages} messages, planned {expected[key].messages}"
        if self.plan and not loose and not quiet and not self.killed:
            yield from _differ("traffic", set(expected.items()), set(found.items()))

    def opened(self) -> Iterator[str]:
        """What it took to open connections."""
        keyed = wire.keyed(self.config)
        for src, dst, kind, messages, size in self._rows(
            "SELECT src, dst, kind, messages, wire_bytes FROM overhead "
            "WHERE kind IN ('greeting', 'ready', 'handshake', 'hello')"
        ):
            name = len(f"node-{src:04d}")
            allowed = {
                "greeting": (0, {64}),
                "ready": (0, {43 + name, 45 + name}),
                "handshake": (0, {460 if src < dst else 194}),
                "hello": (1, {wire.hello(self.config, src, dst)}),
            }[kind]
            if messages != allowed[0] or size not in allowed[1] or (kind == "handshake" and not keyed):
                yield f"{kind} of {src} to {dst}: {messages} messages, {size} bytes; allowed {allowed}"

    # -- what was used -------------------------------------------------------------------------------------------------

    def used(self) -> Iterator[str]:
        rows = self._rows("SELECT node, round, phase, neighbour, used_round FROM used")
        if not self.plan:
            return
        quiet = self.config["algorithm"]["name"] == "selective-sheaf"
        exact = self.steady and not quiet
        found = {row[:4]: row[4] for row in rows}
        asked: dict[tuple[int, int, int, int], int | None] = {}
        for node, part in self.plan.items():
            for row, phase, place in np.argwhere(part["uses"] >= 0):
                if (node, int(row) + 1) in self.planned:
                    used = int(part["uses"][row, phase, place]) or None
                    asked[node, int(row) + 1, int(phase), int(part["neighbours"][place])] = used
        for key in found.keys() - asked.keys():
            yield f"{key}: used {found[key]}, but is not planned at all"
        for key, planned in asked.items():
            if key not in found:
                if (planned or not self.has_server) and not (quiet or key[0] in self.killed):
                    yield f"{key}: not recorded, planned {planned}"
            elif exact and found[key] != planned:
                yield f"{key}: used {found[key]}, planned {planned}"
            elif not exact:
                yield from self._is_allowed(key, found[key])

    def _is_allowed(self, key: tuple[int, int, int, int], used: int | None) -> Iterator[str]:
        _, round, _, neighbour = key
        time = self.config["time"]
        if used is None:
            return
        if not 1 <= used <= self.rounds:
            yield f"{key}: used {used}, which is no round of {neighbour}"
        staleness = math.inf if time["staleness"] == "inf" else time["staleness"]
        if used < round - staleness and time["silence"] != "stale":
            yield f"{key}: used {used}, older than staleness {staleness}"
        if staleness == 0 and used > round and time["silence"] != "stale":
            yield f"{key}: used {used}, ahead of a synchronous client"

    # -- events --------------------------------------------------------------------------------------------------------

    def fates(self) -> Iterator[str]:
        """Crashes, leaves, joins and returns, at their rounds and planned seconds."""
        events = self._rows(
            "SELECT node, kind, detail, virtual_s FROM event WHERE kind IN ('crash', 'leave', 'restart', 'join')"
        )
        for node in self.plan.keys() - self.killed:
            told = sorted(
                (_round_in(detail), kind, virtual_s) for other, kind, detail, virtual_s in events if other == node
            )
            ends = [(round, virtual_s) for round, kind, virtual_s in told if kind in _ENDS]
            begins = [(round, virtual_s) for round, kind, virtual_s in told if kind in _BEGINS]
            yield from (f"client {node}: {line}" for line in self._gaps(node, dict(ends), dict(begins)))
            yield from (f"client {node}: {line}" for line in self._counts(node, told))
            if self.virtual:
                yield from (f"client {node}: {line}" for line in self._times(node, ends, begins))
        yield from self._timeouts()

    def _rounds_of(self, node: int) -> list[int]:
        return sorted(round for other, round in self.planned if other == node)

    def _gaps(self, node: int, ends: dict, begins: dict) -> Iterator[str]:
        """Between two of a client's rounds that do not follow each other it ends, and begins again."""
        rounds = self._rounds_of(node)
        for before, after in pairwise([0, *rounds]):
            if after != before + 1 and after not in begins:
                yield f"begins again in round {after}, and no event tells"
            if before and after != before + 1 and before + 1 not in ends:
                yield f"ends before round {before + 1}, and no event tells"
        if rounds and rounds[-1] < self.rounds and rounds[-1] + 1 not in ends:
            yield f"ends before round {rounds[-1] + 1}, and no event tells"

    def _counts(self, node: int, told: list[tuple[int, str, float | None]]) -> Iterator[str]:
        """Each fault ends a client once, if it gets there; what ends comes back once at most."""
        counts = Counter(kind for _, kind, _ in told)
        last = max(self._rounds_of(node), default=0)
        faults = [fault for fault in self.config.get("faults", ()) if node in fault.get("clients", ())]
        ends = [fault for fault in faults if fault["kind"] in _ENDS]
        due = [fault for fault in ends if fault.get("at_round", self.rounds + 1) <= last]
        drawn = any(self.config.get("chaos", {}).get(kind) for kind in _ENDS)
        times = counts["crash"] + counts["leave"]
        if not len(due) <= times <= len(ends) + drawn:
            yield f"ends {times} times, by {len(due)} to {len(ends) + drawn} faults"
        if counts["restart"] > times or counts["join"] > 1:
            yield f"ends {times} times, but joins {counts['join']} times and comes back {counts['restart']} times"
        if self.virtual:
            often = max(1, len(ends) + drawn)  # who comes back at once may crash again in the same second
            yield from (f"{event} is told {count} times" for event, count in Counter(told).items() if count > often)

    def _times(self, node: int, ends: list, begins: list) -> Iterator[str]:
        """A client that begins more than once at a round works from the last time on; an end comes right after the
        round before it, unless its life has completed none."""
        part = self.plan[node]
        for round, virtual_s in dict(begins).items():
            planned = float(part["start"][round - 1])
            if virtual_s is None or (not math.isnan(planned) and virtual_s != planned):
                yield f"begins round {round} at {virtual_s}, planned {planned}"
        begun = {round for round, _ in begins}
        for round, virtual_s in ends:
            planned = float(part["end"][round - 2]) if round > 1 else math.nan
            if virtual_s is None or (round not in begun and not math.isnan(planned) and virtual_s != planned):
                yield f"ends before round {round} at {virtual_s}, planned {planned}"

    def _timeouts(self) -> Iterator[str]:
        if not (self.plan and self.steady):
            return
        counts: Counter[int] = Counter()
        for node, detail in self._rows("SELECT node, detail FROM event WHERE kind = 'timeout'"):
            counts[node] += int(detail.split()[0])
        for node, part in self.plan.items():
            if counts[node] != (planned := int(part["deadlines"].sum())):
                yield f"timeouts of client {node}: {counts[node]}, planned {planned}"

    # -- state ---------------------------------------------------------------------------------------------------------

    def states(self) -> Iterator[str]:
        """Checkpoints are there, whole, and are the models that the records tell of."""
        norms = {row[:2]: row[2:] for row in self._rows("SELECT node, round, theta_norm, test_metric FROM round")}
        every = self.config["checkpoints"]["every"]
        due = {key for key in norms if key[1] in (0, self.rounds) or (every and key[1] % every == 0)}
        found = {
            (number_of(path), int(path.parent.name.partition("-")[2])): path
            for path in (self.records.path / "state").glob("round-*/node-*.safetensors")
        }
        found = {key: path for key, path in found.items() if key[0] not in self.killed}
        yield from _differ("state files", {key for key in due if key[0] not in self.killed}, set(found))
        yield from (f"unfinished file {path}" for path in (self.records.path / "state").glob("*/*.part"))
        size = wire.parameters(self.config)
        for (node, round), path in found.items():
            theta = load_file(path)["theta"].astype(float)
            if theta.shape != (size,) or not np.isfinite(theta).all():
                yield f"client {node}, round {round}: theta has shape {theta.shape}, not {size} finite numbers"
                continue
            norm, metric = norms.get((node, round), (math.nan, None))
            if not math.isclose(norm, np.linalg.norm(theta), rel_tol=1e-4, abs_tol=1e-6):
                yield f"client {node}, round {round}: norm {norm} on record, {np.linalg.norm(theta)} in its state"
            if (
                metric is not None
                and not self._is_shown(node)
                and abs(metric - self._accuracy(node, theta, metric)) > 1e-6
            ):
                yield f"client {node}, round {round}: accuracy {metric} on record, not what its state has"

    def _is_shown(self, node: int) -> bool:
        """A server's answers to be evaluated, which are no part of its state: what it evaluates may be one of these."""
        return bool(self._rows(f"SELECT 1 FROM overhead WHERE kind = 'evaluation' AND dst = {node}"))

    def _accuracy(self, node: int, theta: np.ndarray, otherwise: float) -> float:
        """Of a linear model that is the client's own; of others, what is on record."""
        if self.config["model"]["kind"] != "logistic" or self.config["algorithm"]["name"] == "per-fedavg":
            return otherwise
        shard = load_file(self.records.path / "shards" / f"node-{node:04d}.safetensors")
        inputs = shard["x_test"].reshape(len(shard["x_test"]), -1).astype(float)
        classes = self.config["data"]["synthetic"]["classes"]
        weights, biases = np.split(theta, [classes * inputs.shape[1]])
        scores = inputs @ weights.reshape(classes, -1).T + biases
        best = np.sort(scores, axis=1)
        if (best[:, -1] - best[:, -2] < 1e-5).any():  # too close to call in another precision
            return otherwise
        return float((scores.argmax(axis=1) == shard["y_test"]).mean())


def _differ(what: str, expected: set, found: set) -> Iterator[str]:
    if missing := expected - found:
        yield f"{len(missing)} {what} missing, such as {sorted(missing)[:3]}"
    if more := found - expected:
        yield f"{len(more)} {what} too many, such as {sorted(more)[:3]}"


def _by_first(pairs: set[tuple[int, int]]) -> dict[int, list[int]]:
    grouped: defaultdict[int, list[int]] = defaultdict(list)
    for first, second in pairs:
        grouped[first].append(second)
    return grouped


def _round_in(detail: str) -> int:
    """The first number: "before round 7", "takes part from round 7"."""
    return next(int(word) for word in detail.split() if word.isdigit())
