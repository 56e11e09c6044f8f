"""Selective sheaf against a loop in numpy, in bytes, and where messages and clients are lost."""

import numpy as np

import oracles
from foreign import sheafgossip
from sheafgossip.node.maps.start import cosine_rows, shared_rows
from sheafgossip.topology.randomness import generator

SEED, CLIENTS, ROUNDS = 3, 8, 60
ALPHA, LAM, SMOOTHING, LISTEN, SURE, PROBE = 0.5, 0.8, 0.8, 5, 1.5, 4
GAMMA, ROWS, SIZE = 0.05, 32, 650
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

    def __init__(self, folder):
        self.theta = folder.thetas(0)
        self.start, self.shards = self.theta[0].copy(), folder.shards()
        assert (self.theta == self.start).all()
        self.signs = 1.0 - 2.0 * generator(SEED, "signs of the shared maps").integers(0, 2, SIZE)
        self.seen = {edge: [] for edge in folder.edges()}
        signal = {node: len(shard["y_train"]) / (len(shard["y_train"]) + KAPPA) for node, shard in self.shards.items()}
        self.threshold = {(i, j): THRESHOLD * np.sqrt(signal[i] * signal[j]) for i, j in self.seen}
        self.on = dict.fromkeys(self.seen, 0.0)
        self.quiet = dict.fromkeys(self.seen, False)
        self.spoke = {edge: [] for edge in self.seen}

    def round(self, k: int) -> None:
        pull = np.zeros_like(self.theta)
        for i, j in self.seen:
            if self.quiet[i, j] and k % PROBE:
                continue
            self.spoke[i, j].append(k)
            P = cosine_rows(shared_rows(SEED, i, {j: ROWS}, SIZE, k - 1)[j], SIZE) * self.signs
            pull[i] += self.on[i, j] * P.T @ (P @ (self.theta[i] - self.theta[j]))
            pull[j] += self.on[i, j] * P.T @ (P @ (self.theta[j] - self.theta[i]))
            self.see((i, j), P)
        gradients = np.stack([oracles.gradient(self.theta[k], self.shards[k]) for k in range(CLIENTS)])
        self.theta = self.theta - ALPHA * (gradients + LAM * pull)

    def see(self, edge: tuple[int, int], P: np.ndarray) -> None:
        u, v = (self.theta[end] - self.start for end in edge)
        if not u.any():
            return
        difference = P @ (u / np.linalg.norm(u) - v / np.linalg.norm(v))
        self.seen[edge].append(1 - SIZE / ROWS * difference @ difference / 2)
        weights = SMOOTHING ** np.arange(len(self.seen[edge]))[::-1]
        weights /= weights.sum()
        mean = weights @ self.seen[edge]
        error = (1 - mean) * np.sqrt(2 / ROWS * (1 - ROWS / SIZE) * weights @ weights)
        if len(self.seen[edge]) >= LISTEN:
            self.quiet[edge] = mean + SURE * error < self.threshold[edge]
            if mean - SURE * error >= self.threshold[edge] or self.quiet[edge]:
                self.on[edge] = float(not self.quiet[edge])


def test_clients_and_the_loop_end_at_the_same_models_with_the_same_edges_and_the_same_bytes(run):
    folder = run(CONFIG)
    loop = Loop(folder)
    for k in range(1, ROUNDS + 1):
        loop.round(k)
    assert oracles.error(folder.thetas(ROUNDS), loop.theta) < 1e-10
    assert {1.0, 0.0} == set(loop.on.values())  # else there was nothing to find

    found = folder.rows(f"SELECT node, neighbour FROM edge WHERE round = {ROUNDS} AND weight = 1")
    on = {edge for edge, weight in loop.on.items() if weight}
    assert {(min(pair), max(pair)) for pair in found} == on
    assert len(found) == 2 * len(on)

    told = {(i, j, k) for edge, rounds in loop.spoke.items() for i, j in (edge, edge[::-1]) for k in rounds}
    assert folder.sent() == dict.fromkeys(told, (1, 8 * (ROWS + 1)))
    assert min(map(len, loop.spoke.values())) <= ROUNDS // PROBE + 3 * LISTEN  # off from some round on


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
