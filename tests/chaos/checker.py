"""What a finished run must have on record, worked out from its configuration, its plan and its shards alone. Each check
yields a line for every difference. Nothing here imports the product."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations_with_replacement, pairwise, product

import numpy as np
from safetensors.numpy import load_file

from . import wire
from .records import Records, number_of

_SHOWN = 6
_OF_SOME = ("pairwise", "epidemic", "ad-psgd", "divshare", "teleportation")  # with patterns of their own
_SEND_LESS = ("selective-sheaf", "prototype-sheaf", "dac", "dpfl", "pens")  # than they might
_NOT_THETA = ("per-fedavg", "fedavg-ft", "apfl", "prototype-sheaf")  # a client uses what is made of it


class Checker:
    """``killed`` are clients that died without being told to, in a run that goes on without them; ``failed``: the run
    has been taken up after a failure."""

    def __init__(self, records: Records, killed: frozenset[int] = frozenset(), *, failed: bool = False):
        self.records, self.killed, self.failed = records, killed, failed
        self._rows, self.config, self.plan = records.rows, records.config, records.plan
        self.virtual = self.config["time"]["clock"] == "virtual"
        self.rounds, self.clients = self.config["rounds"], set(range(self.config["clients"]))
        self.has_server = len(self.plan) > len(self.clients)
        algorithm, topology = self.config["algorithm"]["name"], self.config["topology"]
        changes = topology["directed"] or topology["redraw_every"] or "exponential" in topology["kind"]
        # Not all neighbours talk in all rounds, or not both ways
        self.some = self.has_server or changes or algorithm in _OF_SOME
        self.quiet = algorithm in _SEND_LESS
        there = {node: ~np.isnan(part["start"]) for node, part in self.plan.items()}
        self.of_node = {node: (np.flatnonzero(rows) + 1).tolist() for node, rows in there.items()}
        self.planned = {(node, round) for node, rounds in self.of_node.items() for round in rounds}  # to be done
        self.steady = not killed and self.virtual  # all that the plan says is so, to the byte
        all_stay = all((part["to_life"] == 1).all() and there[node].all() for node, part in self.plan.items())
        self.comes_and_goes = bool(killed) or not all_stay

    def differences(self) -> Iterator[str]:
        checks = [self.end, self.done, self.opened, self.states]
        checks += [self.traffic, self.used, self.fates] if self.plan else []
        for check in checks + ([self.moments] if self.plan and self.virtual else []):
            found = list(check())
            more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
            yield from (f"{check.__name__}: {line}" for line in found[:_SHOWN] + more)

    def cells(self, name: str) -> Iterator[tuple[int, int, int, int, int]]:
        """(node, round, phase, neighbour, value) of a part of the plan, in rounds that are to be done."""
        for node, part in self.plan.items():
            for (row, phase, place), value in np.ndenumerate(part.get(name, np.empty((0, 0, 0)))):
                if (node, row + 1) in self.planned:
                    yield node, row + 1, phase, int(part["neighbours"][place]), int(value)

    def end(self) -> Iterator[str]:
        events = self._rows("SELECT node, kind, detail FROM event")
        ends = [kind for node, kind, _ in events if node == -1 and kind in ("finish", "failure")]
        if ends[-1:] != ["finish"] or (len(ends) > 1 and not self.failed):
            yield f"the launcher's last words are {ends}"
        for node, kind, detail in events:
            may_be = {
                "host-lost": False,
                "lost-records": self.failed,
                "death": node in self.killed,
                "drop": detail.endswith("is gone, message not sent") and self.comes_and_goes,
            }
            if not may_be.get(kind, True):
                yield f"{kind} of {node}: {detail}"

    # -- rounds --------------------------------------------------------------------------------------------------------

    def done(self) -> Iterator[str]:
        """Who has completed which round, each once."""
        rows = self._rows("SELECT node, round, train_loss, theta_norm FROM round")
        found = {(node, round) for node, round, *_ in rows if round}
        expected = self.planned if self.plan else set(product(self.clients, range(1, self.rounds + 1)))
        spared = {(node, round) for node, round in expected - found if node in self.killed}
        yield from _differ("rounds", expected - spared, found)
        for node, first in dict(sorted(spared, reverse=True)).items():  # the least of each stays
            if any((node, later) in found for later in range(first, self.rounds + 1)):
                yield f"client {node} was killed, but has rounds after round {first}"
        starts = {node for node, round, *_ in rows if round == 0}
        joins = (fault["clients"] for fault in self.config.get("faults", ()) if fault["kind"] == "join")
        joiners = {node for clients in joins for node in clients}
        drawn = self.clients if self.config.get("chaos", {}).get("join") else set()
        ends = "SELECT node FROM event WHERE kind IN ('crash', 'leave') AND detail = 'before round 1'"
        gone = {node for (node,) in self._rows(ends)}
        may_start = {node for node in joiners if node in gone or (node, 1) in self.planned} | drawn  # late for round 1
        at_first = (set(self.plan) or self.clients) - joiners - drawn
        yield from _differ("starts", at_first - self.killed, starts - may_start - self.killed)
        for node, round, loss, norm in rows:
            if norm is None or not math.isfinite(norm) or (loss is not None and not math.isfinite(loss)):
                yield f"client {node} in round {round}: loss {loss}, norm {norm}"

    def moments(self) -> Iterator[str]:
        """On the virtual clock the records' times are the plan's."""
        rows = self._rows("SELECT node, round, virtual_s, idle_s, waited_for, test_metric FROM round")
        for node, round, virtual_s, idle_s, whom, metric in rows:
            part, row, expected = self.plan[node], round - 1, (0.0, None, None)
            if round:
                waited, end = int(part["waited_for"][row]), float(part["end"][row])
                if metric is not None and part["shows"][row].any() and virtual_s != end:  # it was evaluated later
                    end = max(end, float(part["shown_at"][row]))
                expected = end, float(part["idle"][row]), None if waited < 0 else waited
            if (virtual_s, idle_s, whom) != expected:
                yield f"client {node}, round {round}: {(virtual_s, idle_s, whom)}, planned {expected}"

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def traffic(self) -> Iterator[str]:
        rows = self._rows("SELECT src, dst, round, messages, payload_bytes, message_bytes, wire_bytes FROM traffic")
        found = {row[:3]: wire.Weight(*row[3:]) for row in rows}
        hosts = dict(self._rows("SELECT node, host FROM node WHERE node >= 0"))
        classes = {node: len(set(self._shard(node)["y_train"].tolist())) for node in self.clients}
        expected: defaultdict[tuple[int, int, int], wire.Weight] = defaultdict(lambda: wire.NOTHING)
        of_one: defaultdict[tuple[int, int, int], set[wire.Weight]] = defaultdict(set)
        for src, round, phase, dst, copies in self.cells("copies"):
            remote, of_client = hosts.get(src) != hosts.get(dst), classes[min(src, dst)]
            weight = wire.weigh(self.config, src, dst, round, phase, remote=remote, classes=of_client)
            of_one[src, dst, round].add(weight)
            expected[src, dst, round] += weight.times(copies)
        again = {(src, dst, round) for src, round, _, dst, life in self.cells("again") if life}  # or not, as they come
        exact = self.steady and not self.quiet
        loose = self.has_server or self.comes_and_goes
        for key, weight in () if exact else found.items():
            if key not in of_one:
                yield f"{key}: {weight}, but nothing is sent there"
            elif weight not in _sums(of_one[key], weight.messages):
                yield f"{key}: {weight}, but one weighs {of_one[key]}"
            elif weight.messages > expected[key].messages and not loose and key not in again:
                yield f"{key}: {weight.messages} messages, planned {expected[key].messages}"
        if exact or not (loose or self.quiet):
            planned = {each for each in expected.items() if each[1].messages and each[0] not in again}
            yield from _differ("traffic", planned, {each for each in found.items() if each[0] not in again})

    def opened(self) -> Iterator[str]:
        """What it took to open connections."""
        for src, dst, kind, messages, size in self._rows("SELECT src, dst, kind, messages, wire_bytes FROM overhead"):
            name = len(f"node-{src:04d}")
            of_kind = {
                "greeting": (0, {64}),
                "ready": (0, {43 + name, 45 + name}),
                "handshake": (0, {460 if src < dst else 194} if wire.keyed(self.config) else set()),
                "hello": (1, {wire.hello(self.config, src, dst)}),
            }
            allowed = of_kind.get(kind, (messages, {size}))
            if messages != allowed[0] or size not in allowed[1]:
                yield f"{kind} of {src} to {dst}: {messages} messages, {size} bytes; allowed {allowed}"

    # -- what was used -------------------------------------------------------------------------------------------------

    def used(self) -> Iterator[str]:
        found = {row[:4]: row[4] for row in self._rows("SELECT node, round, phase, neighbour, used_round FROM used")}
        planned = {tuple(cell): used or None for *cell, used in self.cells("uses")}
        time = self.config["time"]
        staleness = math.inf if time["staleness"] == "inf" else time["staleness"]
        for key in found.keys() - planned.keys():
            yield f"{key}: used {found[key]}, but is not planned at all"
        for key, expected in planned.items():
            used, round = found.get(key), key[1]
            if key not in found:
                if (expected or not self.some) and not (self.quiet or key[0] in self.killed):
                    yield f"{key}: not recorded, planned {expected}"
            elif self.steady and not self.quiet:
                if used != expected:
                    yield f"{key}: used {used}, planned {expected}"
            elif used is not None:
                fresh = used >= round - staleness and (staleness or used <= round)
                if not 1 <= used <= self.rounds or not (fresh or time["silence"] == "stale"):
                    yield f"{key}: used {used}, which is no round, too old, or ahead of a synchronous client"

    # -- events --------------------------------------------------------------------------------------------------------

    def fates(self) -> Iterator[str]:
        """Crashes, leaves, joins and returns, at their rounds and planned seconds; waits that a deadline ended."""
        events = self._rows(
            "SELECT node, kind, detail, virtual_s FROM event WHERE kind IN ('crash', 'leave', 'restart', 'join')"
        )
        for node in self.plan.keys() - self.killed:
            told = sorted((_number_in(detail), kind, at_s) for other, kind, detail, at_s in events if other == node)
            ends = [(round, at_s) for round, kind, at_s in told if kind in ("crash", "leave")]
            begins = [(round, at_s) for round, kind, at_s in told if kind in ("restart", "join")]
            lines = [*self._gaps(node, dict(ends), dict(begins)), *self._counts(node, told)]
            lines += self._times(node, ends, begins) if self.virtual else ()
            yield from (f"client {node}: {line}" for line in lines)
        counts: Counter[int] = Counter()
        for node, detail in self._rows("SELECT node, detail FROM event WHERE kind = 'timeout'"):
            counts[node] += _number_in(detail)
        for node, part in self.plan.items() if self.steady else ():
            if counts[node] != (planned := int(part["deadlines"].sum())):
                yield f"timeouts of client {node}: {counts[node]}, planned {planned}"

    def _gaps(self, node: int, ends: dict, begins: dict) -> Iterator[str]:
        """Between two of a client's rounds that do not follow each other it ends, and begins again."""
        for before, after in pairwise([0, *self.of_node[node], self.rounds + 1]):
            if after != before + 1 and after <= self.rounds and after not in begins:
                yield f"begins again in round {after}, and no event tells"
            if before and after != before + 1 and before + 1 not in ends:
                yield f"ends before round {before + 1}, and no event tells"

    def _counts(self, node: int, told: list[tuple[int, str, float | None]]) -> Iterator[str]:
        """Each fault ends a client once, if it gets there; what ends comes back once at most."""
        counts, last = Counter(kind for _, kind, _ in told), max(self.of_node[node], default=0)
        faults = [fault for fault in self.config.get("faults", ()) if node in fault.get("clients", ())]
        ends = [fault for fault in faults if fault["kind"] in ("crash", "leave")]
        due = [fault for fault in ends if fault.get("at_round", self.rounds + 1) <= last]
        drawn = sum(self.config.get("chaos", {}).get(kind, 0) > 0 for kind in ("crash", "leave"))  # perhaps both
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
        round before it, unless its incarnation has completed none."""
        part, begun = self.plan[node], {round for round, _ in begins}
        moments = [(round, at_s, "begins", float(part["start"][round - 1])) for round, at_s in dict(begins).items()]
        for round, at_s in ends:
            known = round > 1 and round not in begun
            moments.append((round, at_s, "ends before", float(part["end"][round - 2]) if known else math.nan))
        for round, at_s, what, planned in moments:
            if at_s is None or (not math.isnan(planned) and at_s != planned):
                yield f"{what} round {round} at {at_s}, planned {planned}"

    # -- state ---------------------------------------------------------------------------------------------------------

    def states(self) -> Iterator[str]:
        """Checkpoints are there, whole, and are the models that the records tell of."""
        norms = {row[:2]: row[2:] for row in self._rows("SELECT node, round, theta_norm, test_metric FROM round")}
        every, folder = self.config["checkpoints"]["every"], self.records.path / "state"
        files = folder.glob("round-*/node-*.safetensors")
        found = {(number_of(path), int(path.parent.name.partition("-")[2])): path for path in files}
        due = {key for key in norms if key[1] in (0, self.rounds) or (every and key[1] % every == 0)}
        due, there = ({key for key in keys if key[0] not in self.killed} for keys in (due, found))
        yield from _differ("state files", due, there)
        yield from (f"unfinished file {path}" for path in folder.glob("*/*.part"))
        # A server's answers to be evaluated are no part of its clients' state, and may be what these have evaluated
        shown = {dst for (dst,) in self._rows("SELECT dst FROM overhead WHERE kind = 'evaluation'")}
        size = wire.parameters(self.config)
        for node, round in there:
            theta, about = load_file(found[node, round])["theta"].astype(float), f"client {node}, round {round}"
            norm, metric = norms.get((node, round), (math.nan, None))
            if theta.shape != (size,) or not np.isfinite(theta).all():
                yield f"{about}: theta has shape {theta.shape}, not {size} finite numbers"
                continue
            if not math.isclose(norm, np.linalg.norm(theta), rel_tol=1e-4, abs_tol=1e-6):
                yield f"{about}: norm {norm} on record, {np.linalg.norm(theta)} in its state"
            if metric is not None and node not in shown and abs(metric - self._accuracy(node, theta, metric)) > 1e-6:
                yield f"{about}: accuracy {metric} on record, not what its state has"

    def _shard(self, node: int) -> dict[str, np.ndarray]:
        return load_file(self.records.path / "shards" / f"node-{node:04d}.safetensors")

    def _accuracy(self, node: int, theta: np.ndarray, otherwise: float) -> float:
        """Of a linear model that is the client's own; of others, what is on record."""
        if self.config["model"]["kind"] != "logistic" or self.config["algorithm"]["name"] in _NOT_THETA:
            return otherwise
        shard = self._shard(node)
        inputs = shard["x_test"].reshape(len(shard["x_test"]), -1).astype(float)
        classes = self.config["data"]["synthetic"]["classes"]
        weights, biases = np.split(theta, [classes * inputs.shape[1]])
        scores = inputs @ weights.reshape(classes, -1).T + biases
        best = np.sort(scores, axis=1)
        if (best[:, -1] - best[:, -2] < 1e-5).any():  # too close to call in another precision
            return otherwise
        return float((scores.argmax(axis=1) == shard["y_test"]).mean())


def _sums(weights: set[wire.Weight], count: int) -> set[wire.Weight]:
    """All that so many messages may weigh together, each of which has one of these weights."""
    each = combinations_with_replacement(weights, count)
    return {sum(of, start=wire.NOTHING) for of in each}


def _differ(what: str, expected: set, found: set) -> Iterator[str]:
    for rows, how in ((expected - found, "missing"), (found - expected, "too many")):
        if rows:
            yield f"{len(rows)} {what} {how}, such as {sorted(rows)[:3]}"


def _number_in(detail: str) -> int:
    """The first number: "before round 7", "takes part from round 7", "2 waits"."""
    return next(int(word) for word in detail.split() if word.isdigit())
