"""Sheaves of the user's: weights and sizes of edges, maps that are given, sets that maps stay in, features that clients
see. Each against the paper's equations in plain numpy, with explicit matrices."""

import math
import re
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from safetensors.numpy import save_file

import oracles
from runs import RunFolder
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.config.sections import ConfigError
from sheafgossip.topology.errors import UserError

CLIENTS, ROUNDS, LAM, ETA, ALPHA, L2, SIZE = 5, 12, 0.05, 0.4, 0.3, 0.01, 650
EDGES = [(0, 1), (0, 4), (1, 2), (2, 3), (3, 4)]
A = {(0, 1): 2.0, (0, 4): 1.0, (1, 2): 0.5, (2, 3): 1.0, (3, 4): 0.0}
D = {(0, 1): 3, (0, 4): 40, (1, 2): 32, (2, 3): 7, (3, 4): 9}
CSV = "i,j,a,d\n1,0,2,3\n2,1,.5,\n2,3,,7\n3,4,0,9\n0,4,1,40\n4,0,1,40\n0,2,9,9\n"
"""Either direction, an edge twice, gaps that are filled, and a pair that is no edge."""
CODE = "def weigh(i, j, d_i, d_j, factor):\n    return factor / (i + j), min(d_i, d_j) // 65 + i\n"
CONFIG = f"""
clients = {CLIENTS}
rounds = {ROUNDS}
seed = 3
topology.kind = "ring"
data = {{ samples = 300, rotations = [0, 90] }}
model = {{ dtype = "float64", same_start = false }}
training = {{ alpha = {ALPHA}, l2 = {L2} }}
checkpoints = {{ every = {ROUNDS}, save_maps = true }}
algorithm = {{ name = "sheaf-fmtl", gamma = 0.05, lam = {LAM}, eta = {ETA}, start = "identity" }}
"""
BALL, LENGTH = 5.0, 0.7
LAST = {650: 0, 64 * 6 + 6 + 70: 64 * 6 + 6}  # where the last layer begins of a model with so many parameters

Nearest = Callable[[np.ndarray], np.ndarray]


def whole(P: np.ndarray) -> Nearest:
    return lambda matrix: matrix


def orthonormal(P: np.ndarray) -> Nearest:
    def nearest(matrix: np.ndarray) -> np.ndarray:
        left, _, right = np.linalg.svd(matrix, full_matrices=False)
        return LENGTH * left @ right

    return nearest


def in_ball(P: np.ndarray) -> Nearest:
    return lambda matrix: matrix * min(1, BALL / np.linalg.norm(matrix))


def on_places(P: np.ndarray) -> Nearest:
    assert (np.count_nonzero(P, axis=1) == 1).all()
    return lambda matrix: matrix * (P != 0)


def on_last_layer(P: np.ndarray) -> Nearest:
    return lambda matrix: np.where(np.arange(matrix.shape[1]) >= LAST[matrix.shape[1]], matrix, 0)


def both(weights: dict[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    return {ends: a for (i, j), a in weights.items() for ends in ((i, j), (j, i))}


def played(folder: RunFolder, a=None, nearest=whole, eta: float = ETA, hidden=()) -> tuple[dict, dict]:
    """(18), (19) and then the nearest maps, from where the run began; {i: theta_i}, {(i, j): P_ij}."""
    a, first, shards = both(a or dict.fromkeys(EDGES, 1.0)), folder.states(0), folder.shards()
    theta = {i: state["theta"] for i, state in first.items()}
    P = {(i, j): first[i][f"P.{j}"] for i, j in a}
    keep = {ends: nearest(matrix) for ends, matrix in P.items()}
    for ends, matrix in P.items():
        np.testing.assert_allclose(keep[ends](matrix), matrix, rtol=0, atol=1e-12)  # at the start, too

    def pulls() -> dict:
        return {(i, j): a[i, j] * (P[i, j] @ theta[i] - P[j, i] @ theta[j]) for i, j in P}

    for _ in range(ROUNDS):
        r = pulls()
        slopes = {i: oracles.gradient(theta[i], shards[i], hidden=hidden) + L2 * theta[i] for i in theta}
        theta = {
            i: theta[i] - ALPHA * (slopes[i] + LAM * sum(P[ends].T @ r[ends] for ends in P if ends[0] == i))
            for i in theta
        }
        if eta:
            r = pulls()
            P = {(i, j): keep[i, j](P[i, j] - eta * LAM * np.outer(r[i, j], theta[i])) for i, j in P}
    return theta, P


def assert_played(folder: RunFolder, tolerance: float = 1e-9, **oracle) -> None:
    theta, P = played(folder, **oracle)
    last = folder.states(ROUNDS)
    for i, expected in theta.items():
        assert oracles.error(last[i]["theta"], expected) < tolerance
    for (i, j), matrix in P.items():
        np.testing.assert_allclose(last[i][f"P.{j}"], matrix, rtol=0, atol=tolerance)
    norms = folder.rows(f"SELECT node, neighbour, map_norm FROM edge WHERE round = {ROUNDS}")
    for i, j, norm in norms:
        assert norm == pytest.approx(np.linalg.norm(P[i, j]), rel=1e-8)
    moved = sum(np.linalg.norm(P[i, j] - folder.states(0)[i][f"P.{j}"]) for i, j in P)
    assert oracle.get("eta") == 0 or moved > 0.01  # else the agreement would mean nothing


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    (folder / "edges.csv").write_text(CSV)
    (folder / "weights.csv").write_text(re.sub(r",[^,\n]*\n", "\n", CSV))
    (folder / "weigh.py").write_text(CODE)
    return folder


# -- weights and sizes of edges ----------------------------------------------------------------------------------------


def test_weights_and_sizes_of_a_file_are_those_of_the_edges_with_either_exchange(run, files):
    given = f"algorithm.edges.path={files / 'edges.csv'}"
    plain, fused = run(CONFIG, given), run(CONFIG, given, "algorithm.exchange=fused", "checkpoints.save_maps=false")
    assert_played(plain, a=A)
    assert plain.sent() == {(i, j, k): (2, 2 * 8 * D[min(i, j), max(i, j)]) for i, j, k in plain.sent()}
    assert fused.sent() == {(i, j, k): (1, 8 * (D[min(i, j), max(i, j)] + 1)) for i, j, k in fused.sent()}
    for i, theta in plain.theta(ROUNDS).items():
        assert oracles.error(fused.theta(ROUNDS)[i], theta) < 1e-9
    objectives = "SELECT objective, gradient_norm FROM round WHERE round > 1 ORDER BY round, node"
    np.testing.assert_allclose(fused.rows(objectives), plain.rows(objectives), rtol=1e-8)


def test_a_gradient_s_norm_is_that_of_the_weighed_objective(run, files):
    folder = run(CONFIG, f"algorithm.edges.path={files / 'edges.csv'}")
    first, shards, a = folder.states(0), folder.shards(), both(A)
    squared = 0.0
    for i, state in first.items():
        slope = oracles.gradient(state["theta"], shards[i]) + L2 * state["theta"]
        for j in (j for ends, j in a if ends == i):
            r = a[i, j] * (state[f"P.{j}"] @ state["theta"] - first[j][f"P.{i}"] @ first[j]["theta"])
            slope = slope + LAM * state[f"P.{j}"].T @ r
            squared += LAM**2 * (r @ r) * (state["theta"] @ state["theta"])
        squared += slope @ slope
    (told,) = folder.rows("SELECT sum(gradient_norm * gradient_norm) FROM round WHERE round = 1")[0]
    assert told == pytest.approx(squared, rel=1e-9)


def test_a_function_of_the_user_s_gives_them_and_is_kept_with_the_run(run, files):
    use = f"algorithm.edges={{use = '{files / 'weigh.py'}:weigh', options = {{factor = 3}}}}"
    folder = run(CONFIG, use)
    assert_played(folder, a={(i, j): 3 / (i + j) for i, j in EDGES})
    assert {key[:2]: size for key, (_, size) in folder.sent().items()} == {
        ends: 16 * (10 + min(ends)) for ends in both(A)
    }
    assert (folder.path / "code" / "weigh.py").read_text() == CODE


def test_dfedu_takes_weights_of_a_file(run, files):
    dfedu = CONFIG.replace('"sheaf-fmtl", gamma = 0.05', '"dfedu"').replace(f', eta = {ETA}, start = "identity"', "")
    folder = run(dfedu, f"algorithm.edges.path={files / 'weights.csv'}")
    first = folder.states(0)
    for i, j in both(A):
        np.testing.assert_array_equal(first[i][f"P.{j}"], math.sqrt(both(A)[i, j]) * np.eye(SIZE))
    assert_played(folder, eta=0.0)  # the weights are in the maps


# -- sets that maps stay in --------------------------------------------------------------------------------------------

CONSTRAINED = {
    "orthonormal": (["constraint=orthonormal", f"start_scale={LENGTH}", "start=gaussian"], orthonormal),
    "diagonal": (["constraint=diagonal"], on_places),
    "diagonal of shared": (["constraint=diagonal", "start=shared"], on_places),
    "ball": (["constraint=ball", f"radius={BALL}", "storage=factored"], in_ball),
    "ball, structured start": (["constraint=ball", f"radius={BALL}", "start=orthogonal", "storage=factored"], in_ball),
    "ball, dense": (["constraint=ball", f"radius={BALL}", "storage=dense"], in_ball),
    "weighed": (["constraint=orthonormal", f"start_scale={LENGTH}", "start=gaussian", "edges"], orthonormal),
}


@pytest.mark.parametrize("name", CONSTRAINED)
def test_maps_stay_in_their_set_as_the_equations_and_a_projection_have_it(run, files, name):
    keys, nearest = CONSTRAINED[name]
    given = [f"algorithm.{key}" if "=" in key else f"algorithm.edges.path={files / 'edges.csv'}" for key in keys]
    folder = run(CONFIG, *given)
    assert_played(folder, nearest=nearest, a=A if "edges" in keys else None)
    totals = [total for (total,) in folder.rows("SELECT sum(objective) FROM round WHERE round > 0 GROUP BY round")]
    assert len(totals) == ROUNDS
    # (18) and (19) are short steps on either block, and the nearest maps minimise what bounds the objective from above
    assert all(after < before for before, after in pairwise(totals))


def test_maps_of_some_layers_see_these_alone_and_are_smaller(run):
    folder = run(CONFIG, "model.kind=mlp", "model.hidden=[6]", "algorithm.layers=['output']", "algorithm.gamma=0.2")
    assert_played(folder, nearest=on_last_layer, hidden=(6,))
    assert {size for _, size in folder.sent().values()} == {2 * 8 * 14}  # 0.2 of 70 numbers, not of 460


def test_maps_of_some_layers_agree_whatever_exchange_and_storage(run):
    mlp = "model.kind=mlp", "model.hidden=[6]", "algorithm.layers=['hidden*', 'output.bias']", "algorithm.gamma=0.1"
    first, *others = (
        run(CONFIG, *mlp, "algorithm.start=orthogonal", *(f"algorithm.{key}" for key in keys)).theta(ROUNDS)
        for keys in (["storage=dense"], ["storage=factored"], ["exchange=fused"], ["storage=auto"])
    )
    for other in others:
        for i, theta in first.items():
            assert oracles.error(other[i], theta) < 1e-9


# -- maps that are given -----------------------------------------------------------------------------------------------


def random_maps(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {f"P.{i}.{j}": 0.1 * rng.normal(size=(D[min(i, j), max(i, j)], SIZE)) for i, j in both(A)}


@pytest.mark.parametrize("eta", [0.0, ETA])
def test_given_maps_are_learned_on_from_there_or_stay(run, tmp_path, eta):
    maps = random_maps(np.random.default_rng(0))
    save_file(maps | {"other": np.ones(3)}, tmp_path / "maps.safetensors")
    folder = run(CONFIG, "algorithm.start=given", f"algorithm.maps_from={tmp_path / 'maps.safetensors'}",
                 f"algorithm.eta={eta}", "algorithm.gamma=0.01")  # fmt: skip
    for i, j in both(A):
        np.testing.assert_array_equal(folder.states(0)[i][f"P.{j}"], maps[f"P.{i}.{j}"])
    assert_played(folder, eta=eta)
    sent = {key[:2]: size for key, (_, size) in folder.sent().items()}
    assert sent == {(i, j): 8 * D[min(i, j), max(i, j)] * (1 + bool(eta)) for i, j in both(A)}


def test_given_maps_with_a_place_a_row_can_stay_diagonal(run, tmp_path):
    rng, maps = np.random.default_rng(1), {}
    for i, j in both(A):
        P = np.zeros((9, SIZE))
        P[np.arange(9), rng.choice(SIZE, 9, replace=False)] = rng.uniform(1, 2, 9)
        maps[f"P.{i}.{j}"] = P
    save_file(maps, tmp_path / "maps.safetensors")
    keys = "start=given", f"maps_from={tmp_path / 'maps.safetensors'}", "constraint=diagonal"
    assert_played(run(CONFIG, *(f"algorithm.{key}" for key in keys)), nearest=on_places)


# -- features that clients see -----------------------------------------------------------------------------------------

HELD = {0: [0, 1, 2], 1: [2, 3], 2: [0, 3, 4]}


def test_a_server_and_clients_with_chosen_features_agree_on_an_mlp_through_its_selections(run, tmp_path):
    """(16) with P_i0 = I and P_0i = Pi_i, for a network with a hidden layer."""
    rng, hidden, rounds, lam = np.random.default_rng(2), 4, 9, 0.4
    x, client = rng.normal(size=(60, 5)), np.repeat(np.arange(3), 20)
    np.savez(tmp_path / "tasks.npz", x=x, y=rng.integers(0, 3, 60), client=client)
    rows = [f"{i},{f}" for i, held in HELD.items() for f in held[::-1]]
    (tmp_path / "features.csv").write_text("\n".join(["client,feature", *rows]))
    folder = run(f"""
        clients = 3
        rounds = {rounds}
        data = {{ dataset = "npz", root = "{tmp_path}/tasks.npz", features_from = "{tmp_path}/features.csv" }}
        model = {{ kind = "mlp", hidden = [{hidden}], dtype = "float64" }}
        training.alpha = {ALPHA}
        checkpoints.every = 1
        algorithm = {{ name = "sheaf-fmtl", start = "selection", eta = 0.0, lam = {lam}, server = true }}
    """)
    first, shards, whole = folder.theta(0), folder.shards(), 5 * hidden + hidden + 3 * hidden + 3
    seen = {i: np.zeros((hidden, 5), bool) for i in HELD}
    for i, held in HELD.items():
        seen[i][:, held] = True
    chosen = {i: np.append(mask.ravel(), np.ones(whole - 5 * hidden, bool)) for i, mask in seen.items()}  # Pi_i
    for i, held in HELD.items():
        rows = np.concatenate([shards[i]["x_train"], shards[i]["x_test"]])
        own = x[client == i].astype(np.float32)[:, held]
        assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, own.tolist()))
        np.testing.assert_array_equal(first[i], first[3][chosen[i]])  # hidden units mean the same everywhere
    theta, server = {i: first[i] for i in HELD}, first[3]
    for _ in range(rounds):
        covered = sum(mask.astype(float) for mask in chosen.values())
        means = sum(np.bincount(np.flatnonzero(chosen[i]), weights=theta[i], minlength=whole) for i in HELD)
        slopes = {i: oracles.gradient(theta[i], shards[i], hidden=(hidden,)) for i in HELD}
        theta = {i: theta[i] - ALPHA * (slopes[i] + lam * (theta[i] - server[chosen[i]])) for i in HELD}
        server = np.where(covered > 0, means / np.maximum(covered, 1), server)
    for i, expected in (theta | {3: server}).items():
        np.testing.assert_allclose(folder.theta(rounds)[i], expected, rtol=0, atol=1e-10)


def test_weights_of_features_that_both_see_can_be_learned(run, tmp_path):
    """Diagonal maps on selections, on a graph without a server."""
    rows = [f"{i},{f}" for i in range(CLIENTS) for f in range(64) if (f + i) % 3]
    (tmp_path / "features.csv").write_text("\n".join(["client,feature", *rows]))
    keys = "algorithm.start=selection", "algorithm.constraint=diagonal", f"data.features_from={tmp_path}/features.csv"
    folder = run(CONFIG.replace("gamma = 0.05, ", ""), *keys)
    first = folder.states(0)
    for i, j in EDGES:
        common = sum(bool((f + i) % 3 and (f + j) % 3) for f in range(64))
        assert np.count_nonzero(first[i][f"P.{j}"]) == len(first[i][f"P.{j}"]) == 10 * common + 10
    assert_played(folder, nearest=on_places)


# -- what is refused ---------------------------------------------------------------------------------------------------

ZERO = np.zeros((4, SIZE))
WRONG_MAPS = {
    "has no P.1.0; every edge of the graph needs both": lambda maps: maps.pop("P.1.0"),
    "P.0.1 is of shape (3, 650, 1); it must be (d_ij, 650), d_ij from 1 to 650": lambda maps: maps.update(
        {"P.0.1": maps["P.0.1"][:, :, None]}
    ),
    "P.4.3 is of shape (9, 649)": lambda maps: maps.update({"P.4.3": maps["P.4.3"][:, 1:].copy()}),
    "P.2.3 has 7 rows, and P.3.2 6: they must be alike": lambda maps: maps.update({"P.3.2": maps["P.3.2"][1:].copy()}),
    "P.0.4 holds I64; allowed are F64": lambda maps: maps.update({"P.0.4": maps["P.0.4"].astype(np.int64)}),
    "P.1.2 holds numbers that are not finite": lambda maps: maps["P.1.2"].__setitem__((3, 3), np.nan),
    "P.1.2 and P.2.1 are zero: maps that start so never learn": lambda maps: maps.update(
        {"P.1.2": ZERO.copy(), "P.2.1": ZERO.copy()}
    ),
}


@pytest.mark.parametrize("said", WRONG_MAPS)
def test_given_maps_that_do_not_fit_are_one_line(run, tmp_path, said):
    maps = random_maps(np.random.default_rng(0))
    WRONG_MAPS[said](maps)
    save_file(maps, tmp_path / "maps.safetensors")
    keys = "algorithm.start=given", f"algorithm.maps_from={tmp_path / 'maps.safetensors'}", "algorithm.gamma=0.01"
    with pytest.raises(UserError) as told:
        run(CONFIG, *keys)
    assert str(told.value).startswith(f"algorithm.maps_from = '{tmp_path}/maps.safetensors': {said}")
    assert "\n" not in str(told.value)


WRONG_EDGES = {
    "i,j,a\n0,1,1\n": "has no line for 4 of the 5 edges of the graph: 0-4, 1-2, 2-3, 3-4",
    "i,j,a\n0,1,-1\n": "line 2: a = -1: must be at least 0",
    "i,j,a\n0,1,x\n": "line 2: a = 'x': must be a finite number",
    "i,j,a\n0,1,1e999\n": "line 2: a = '1e999': must be a finite number",
    "i,j,a\n0,5,1\n": "line 2: j = 5; allowed are whole numbers from 0 to 4",
    "i,j,a\n0,0,1\n": "line 2: client 0 is no neighbour of itself",
    "i,j,a\n0,1,1\n1,0,2\n": "line 3: says something else of the edge 0-1 than a line before",
    "i,j,d\n0,1,651\n": "line 2: d = 651; allowed are whole numbers from 1 to 650",
    "i,j,d\n0,1,1.5\n": "line 2: d = 1.5; allowed are whole numbers from 1 to 650",
    "i,j,w\n0,1,1\n": "unknown column 'w'; the first line names the columns: i, j, a, d",
    "i,a\n0,1\n": "column 'j' is missing; the first line names the columns: i, j, a, d",
    "i,j,a\n0,1\n": "line 2: has 2 cells, and the first line 3",
    "": "column 'i' is missing; the first line names the columns: i, j, a, d",
    "i,j\n0,1\n": "tells neither a nor d of the edges",
}


@pytest.mark.parametrize("text", WRONG_EDGES)
def test_a_file_of_edges_that_is_wrong_is_one_line(run, tmp_path, text):
    path = tmp_path / "edges.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=f"^{re.escape(f'algorithm.edges.path = {str(path)!r}: {WRONG_EDGES[text]}')}"):
        run(CONFIG, f"algorithm.edges.path={path}")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("-1", "returned -1; allowed is a number a_ij from 0, or (a_ij, d_ij)"),
        ("'2'", "returned '2'; allowed is a number a_ij from 0"),
        ("None", "returned None; allowed is a number a_ij from 0"),
        ("float('nan')", "returned nan; allowed is a number a_ij from 0"),
        ("(1, 651)", "returned [1, 651]; allowed is (a_ij, d_ij) with 1 <= d_ij <= 650"),
        ("(1, 2.5)", "returned [1, 2.5]; allowed is (a_ij, d_ij) with 1 <= d_ij <= 650"),
        ("(1, 2, 3)", "returned [1, 2, 3]; allowed is (a_ij, d_ij) with 1 <= d_ij <= 650"),
    ],
)
def test_what_a_function_may_not_return_is_one_line(run, tmp_path, returned, said):
    (tmp_path / "mine.py").write_text(f"def weigh(i, j, d_i, d_j):\n    return {returned}\n")
    with pytest.raises(UserError, match=re.escape(f"mine.py:weigh': weigh(0, 1, 650, 650) {said}")):
        run(CONFIG, f"algorithm.edges.use={tmp_path}/mine.py:weigh")


def test_a_function_that_cannot_be_called_so_is_one_line(run, tmp_path):
    (tmp_path / "mine.py").write_text("def weigh(i, j):\n    return 1\n")
    with pytest.raises(UserError, match=r"cannot be called as weigh\(0, 1, 650, 650\)"):
        run(CONFIG, f"algorithm.edges.use={tmp_path}/mine.py:weigh")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client,feature\n0,0\n", "gives client 1 no feature; each of the 5 clients needs one at least"),
        ("client,feature\n0,64\n", "line 2: feature = 64; allowed are whole numbers from 0 to 63"),
        ("client,feature\n0,3\n0,3\n", "line 3: feature 3 of client 0 stands there twice"),
        ("client,features\n0,3\n", "column 'feature' is missing"),
    ],
)
def test_a_file_of_features_that_is_wrong_is_one_line(run, tmp_path, text, said):
    (tmp_path / "features.csv").write_text(text)
    with pytest.raises(UserError, match=re.escape(f"features.csv': {said}")):
        run(CONFIG, f"data.features_from={tmp_path}/features.csv")


def test_both_sources_of_weights_at_once_are_refused(tmp_path):
    (tmp_path / "c.toml").write_text('algorithm.name = "dfedu"\nalgorithm.edges = { path = "a.csv", use = "b.py:c" }')
    with pytest.raises(ConfigError, match=r"algorithm\.edges: path and use exclude each other"):
        load(tmp_path / "c.toml")
