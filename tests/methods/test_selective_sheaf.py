"""Selective sheaf against a loop in numpy, in bytes, and where messages and clients are lost."""

import numpy as np
import pytest

import oracles
from foreign import sheafgossip
from sheafgossip.node.maps import cosine_rows, shared_rows
from sheafgossip.topology.randomness import generator

SEED, CLIENTS, ROUNDS = 3, 8, 60
ALPHA, LAM, SMOOTHING, LISTEN, SURE, PROBE = 0.5, 0.8, 0.8, 5, 1.5, 4
GAMMA, ROWS = 0.05, 32
THRESHOLD, KAPPA = 0.4, 20
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = {SEED}
[topology]
p = 0.6
[data]
samples = 800
rotations = [0, 90]
reduced_clients = 0.4
[model]
dtype = "float64"
[training]
alpha = {ALPHA}
[evaluation]
every = 0
[algorithm]
name = "selective-sheaf"
gamma = {GAMMA}
lam = {LAM}
smoothing = {SMOOTHING}
listen = {LISTEN}
sure = {SURE}
probe_every = {PROBE}
threshold = {THRESHOLD}
noise_samples = {KAPPA}
"""


class Loop:
    """All clients in one place. Each edge keeps all that it has seen, and its estimates are made of that anew."""

    def __init__(self, folder, hidden=(), blocks=(650,), soft=False, drift_at=ROUNDS + 1):
        self.theta, self.shards, self.hidden = folder.thetas(0), folder.shards(), hidden
        self.size, self.blocks, self.soft, self.drift_at = sum(blocks), blocks, soft, drift_at
        self.start, self.loss_at_start = self.theta[0].copy(), [np.nan] * CLIENTS
        assert (self.theta == self.start).all()
        self.rows = int(GAMMA * self.size)
        self.signs = 1.0 - 2.0 * generator(SEED, "signs of the shared maps").integers(0, 2, self.size)
        signal = {node: len(shard["y_train"]) / (len(shard["y_train"]) + KAPPA) for node, shard in self.shards.items()}
        self.edges = folder.edges()
        self.threshold = {(i, j): THRESHOLD * np.sqrt(signal[i] * signal[j]) for i, j in self.edges}
        self.seen = {edge: [[] for _ in blocks] for edge in self.edges}
        self.on = {edge: np.zeros((2, len(blocks))) for edge in self.edges}  # as either end would have it
        self.spoke = {edge: [] for edge in self.edges}
        self.restarted = set()

    def round(self, k: int, restart: bool = False) -> None:
        pull = np.zeros_like(self.theta)
        for i, j in self.edges:
            estimates = [self.estimate((i, j), b) for b in range(len(self.blocks))]
            if all(surely_off for _, _, surely_off in estimates) and k % PROBE:
                continue
            self.spoke[i, j].append(k)
            P, block = self.P(i, j, k)
            w = self.on[i, j].min(axis=0) * ([max(0, mean) ** 2 for mean, *_ in estimates] if self.soft else 1)
            pull[i] += P.T @ (w[block] * (P @ (self.theta[i] - self.theta[j])))
            pull[j] += P.T @ (w[block] * (P @ (self.theta[j] - self.theta[i])))
            for b in range(len(self.blocks)):
                self.see((i, j), P, block, b)
        for i, shard in self.shards.items():
            shard = shard if k < self.drift_at else shard | {"x_train": shard["x_train_drifted"]}
            before = self.theta[i]
            gradient = oracles.gradient(before, shard, hidden=self.hidden)
            self.theta[i] = before - ALPHA * (gradient + LAM * pull[i])
            if restart:
                self.restart_where_lost(i, k, loss(before, shard))

    def P(self, i: int, j: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows of an edge in a round, and the block of each."""
        rows = shared_rows(SEED, i, {j: self.rows}, self.size, k - 1)[j]
        ends = np.cumsum(self.blocks)
        block, P = np.searchsorted(ends, rows, side="right"), np.zeros((self.rows, self.size))
        for b, (end, length) in enumerate(zip(ends, self.blocks, strict=True)):
            P[block == b, end - length : end] = cosine_rows(rows[block == b] - (end - length), length)
        return P * self.signs, block

    def see(self, edge: tuple[int, int], P: np.ndarray, block: np.ndarray, b: int) -> None:
        part = slice(sum(self.blocks[:b]), sum(self.blocks[: b + 1]))
        u, v = ((self.theta[end] - self.start)[part] for end in edge)
        if not u.any() or not v.any():
            self.seen[edge][b] = []
            self.on[edge][:, b] = 0
        elif (block == b).any():
            m = (block == b).sum()
            difference = P[block == b, part] @ (u / np.linalg.norm(u) - v / np.linalg.norm(v))
            self.seen[edge][b].append((1 - len(u) / m * difference @ difference / 2, 2 / m * (1 - m / len(u))))
        _, surely_on, surely_off = self.estimate(edge, b)
        if surely_on or surely_off:
            self.on[edge][:, b] = surely_on

    def estimate(self, edge: tuple[int, int], b: int) -> tuple[float, bool, bool]:
        """Mean cosine, and whether it is surely at least the threshold, or surely below."""
        if not self.seen[edge][b]:
            return 0.0, False, False
        x, variance = np.array(self.seen[edge][b]).T
        weights = SMOOTHING ** np.arange(len(x))[::-1]
        weights /= weights.sum()
        mean = weights @ x
        margin = SURE * (1 - mean) * np.sqrt(weights**2 @ variance)
        if len(x) < LISTEN:
            return mean, False, False
        return mean, mean - margin >= self.threshold[edge], mean + margin < self.threshold[edge]

    def restart_where_lost(self, i: int, k: int, loss: float) -> None:
        if np.isnan(self.loss_at_start[i]):
            self.loss_at_start[i] = loss
        elif loss > self.loss_at_start[i]:
            self.theta[i], self.loss_at_start[i] = self.start, np.nan
            self.restarted.add((i, k))
            for edge in self.edges:
                if i in edge:
                    self.on[edge][edge.index(i)] = 0


def loss(theta, shard):
    (layer,) = oracles.layers_of(theta)
    p = oracles.probabilities(oracles.bordered(shard["x_train"]) @ layer.T)
    return -np.log(p[np.arange(len(p)), shard["y_train"]]).mean()


@pytest.mark.parametrize(
    ("config", "loop"),
    [
        ("", {}),
        ('weights = "soft"', {"soft": True}),
        ('blocks = "head"\n[model]\nkind = "mlp"\nhidden = [9]', {"blocks": (585, 100), "hidden": (9,)}),
        ("restart = true\n[data.drift]\nat_round = 40\nrotations = [0, 180]", {"drift_at": 40}),
    ],
    ids=["hard", "soft", "blocks", "restart"],
)
def test_clients_and_the_loop_end_at_the_same_models_with_the_same_edges_and_the_same_bytes(run, config, loop):
    folder = run(CONFIG.replace('[model]\ndtype = "float64"', "") + config, "model.dtype=float64")
    loop = Loop(folder, **loop)
    for k in range(1, ROUNDS + 1):
        loop.round(k, "restart" in config)
    assert oracles.error(folder.thetas(ROUNDS), loop.theta) < 1e-10
    assert bool(loop.restarted) == ("restart" in config)
    on = {edge for edge, on in loop.on.items() if on.min(axis=0).any()}
    decided = {value for on in loop.on.values() for value in on.min(axis=0).tolist()}
    assert decided == {0, 1} or loop.restarted  # else there was nothing to find
    found = folder.rows(f"SELECT node, neighbour FROM edge WHERE round = {ROUNDS} AND weight > 0")
    assert {(min(pair), max(pair)) for pair in found} == on
    assert len(found) == 2 * len(on)

    told = {(i, j, k) for edge, rounds in loop.spoke.items() for i, j in (edge, edge[::-1]) for k in rounds}
    assert folder.sent() == dict.fromkeys(told, (1, 8 * (loop.rows + len(loop.blocks))))
    quietest = min(map(len, loop.spoke.values()))  # one that is off from some round on
    assert quietest <= ROUNDS // PROBE + 3 * LISTEN or len(loop.blocks) > 1 or loop.restarted


def test_a_client_without_neighbours_learns_alone(run):
    alone, local = (
        run(f'clients = 1\nrounds = {ROUNDS}\ndata.samples = 50\nalgorithm.name = "{name}"')
        for name in ("selective-sheaf", "local")
    )
    np.testing.assert_array_equal(alone.thetas(ROUNDS), local.thetas(ROUNDS))


SCENARIO = (
    CONFIG.replace('dtype = "float64"', 'dtype = "float32"')
    + """
[checkpoints]
every = 10
[time]
clock = "{clock}"
{time}
[compute]
step_s = 0.01
[[faults]]
kind = "crash"
clients = [2]
at_round = 21
restart_after = 6
"""
)


def assert_one_weight_where_both_heard(folder) -> dict[tuple[int, int, int], float]:
    """Of both ends that used each other's message of a round; returns {(round, i, j): weight}."""
    weights = {(k, i, j): w for k, i, j, w in folder.rows("SELECT round, node, neighbour, weight FROM edge")}
    used = set(folder.rows("SELECT round, node, neighbour FROM used WHERE used_round = round"))
    heard = {(k, i, j) for k, i, j in used if i < j and (k, j, i) in used}
    assert heard
    assert [(k, i, j) for k, i, j in heard if weights[k, i, j] != weights[k, j, i]] == []
    return weights


def test_with_losses_stragglers_and_a_restart_two_ends_that_hear_each_other_use_one_weight(run):
    waits = 'silence = "skip"\ndeadline_s = 0.2\nnotice_s = 0.1\n'
    lossy = waits + '[links]\nloss = 0.1\n[stragglers]\nkind = "fixed"\nfactor = 5'
    folder = run(SCENARIO.format(clock="virtual", time=lossy), "rounds=100")
    weights = assert_one_weight_where_both_heard(folder)
    fates = folder.rows("SELECT kind, node FROM event WHERE kind IN ('crash', 'restart')")
    assert fates == [("crash", 2), ("restart", 2)]
    quiet = folder.rows("SELECT count(*) FROM overhead WHERE kind = 'confirmation'")[0][0]
    assert quiet  # who is quiet says so without a vector: the plan has a message there
    vectors, most = folder.rows("SELECT count(*), max(payload_bytes) FROM traffic")[0]
    assert vectors < 0.7 * 2 * len(folder.edges()) * 100
    assert most == 4 * (ROWS + 1)
    on = {(i, j) for (k, i, j), weight in weights.items() if k > 90 and weight}
    groups = {edge for edge in folder.edges() if edge[0] // 4 == edge[1] // 4}
    assert {(min(edge), max(edge)) for edge in on} == groups


def test_on_the_wall_clock_they_do_so_too(run):
    folder = run(SCENARIO.format(clock="wall", time=""))
    assert_one_weight_where_both_heard(folder)
    assert folder.rows("SELECT DISTINCT max(round) FROM round GROUP BY node") == [(ROUNDS,)]


def test_clients_that_seek_meet_over_connections_of_their_own(run):
    """Three groups on a ring: from a third of neighbours alike to most."""
    folder = run(
        CONFIG.replace("clients = 8", "clients = 12")
        .replace("p = 0.6", 'kind = "watts-strogatz"\np = 1.0')
        .replace("rotations = [0, 90]\nreduced_clients = 0.4", "rotations = [0, 90, 180]")
        .replace(f"{THRESHOLD}\nnoise_samples = {KAPPA}", "0.3\nnoise_samples = 0")
        + "seek = true\n"
    )
    rows = folder.rows("SELECT round, node, neighbour FROM edge")
    talks = {k: {(i, j) for round, i, j in rows if round == k} for k in (1, ROUNDS)}
    assert all((j, i) in pairs for pairs in talks.values() for i, j in pairs)
    alike = {k: sum(i // 4 == j // 4 for i, j in pairs) / len(pairs) for k, pairs in talks.items()}
    assert alike[1] < 0.5 < 0.7 < alike[ROUNDS]
    assert len(folder.edges()) == 12 * 11 / 2  # everyone could talk to everyone
    said = folder.sent()
    assert {(i, j) for i, j, k in said if k == 1} == talks[1]
    meetings = {row for (_, _, k), row in said.items() if k % PROBE == 0 and k > LISTEN}
    assert meetings == {(2, 8 * (ROWS + 1 + 2))}
    others = {row for (_, _, k), row in said.items() if k % PROBE or k <= LISTEN}
    assert others == {(1, 8 * (ROWS + 1))}


def test_seeking_in_a_scenario_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "config.toml").write_text(CONFIG + "seek = true\n[compute]\nstep_s = 0.1\n")
    code, _, err = sheafgossip("run", tmp_path / "config.toml", "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "algorithm.seek = true: a scenario is planned for a graph that stays the same" in err
