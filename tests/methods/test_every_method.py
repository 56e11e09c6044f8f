"""What holds of every method: threads have the bits of processes, an interrupted run those of an unbroken one, and what
is recorded in mid-run is what a run that ends there records. Where a server draws clients for each round, all evaluate,
with the models of the round."""

import pytest

from oracles import accuracy
from runs import assert_same, run_here_again
from sheafgossip.launcher.config.files import load
from sheafgossip.launcher.prepare.assignments import Site
from sheafgossip.launcher.prepare.preparation import work_out
from sheafgossip.metrics.verification import compare_with_kernel
from sheafgossip.node.algorithms import ALGORITHMS
from sheafgossip.topology.errors import UserError

from . import normalized

pytestmark = pytest.mark.usefixtures("one_fork_server")

ROUNDS, END = 7, 5
CONFIG = f"""
clients = 6
rounds = {ROUNDS}
seed = 3
data = {{ samples = 360, partition = "classes", classes_per_client = 8 }}
training = {{ work = "steps", steps = 2, alpha = 0.3, momentum = MOMENTUM }}
checkpoints.every = 3
algorithm = {{ KEYS }}
"""
HYPERNETWORK = "fraction = 0.5, eta = 0.01, hidden = 16, embedding = 4"
NORM = f'model.use = "{normalized.__file__}:make"'
MLP = 'model = { kind = "mlp", hidden = [16] }'
STRAGGLERS = 'time.clock = "virtual"\ncompute.step_s = 0.1\nstragglers.kind = "pareto"'
FAULTS = """
time = { clock = "virtual", staleness = 2, silence = "stale", deadline_s = 0.5 }
compute = { step_s = 0.05, slowdown = [1.0, 4.0] }
links = { latency_s = 0.02, loss = 0.1 }
faults = [{ kind = "crash", clients = [2], at_round = 3, restart_after = 1 }]
"""
MISSING = FAULTS.replace('staleness = 2, silence = "stale"', 'silence = "skip"')
OLD = FAULTS.replace("staleness = 2, ", "")
OF_MEETINGS = """
time = { clock = "virtual", deadline_s = 0.5 }
compute = { step_s = 0.05, slowdown = [1.0, 4.0] }
links = { latency_s = 0.02, loss = 0.1 }
faults = [{ kind = "crash", clients = [4], at_round = 3, restart_after_s = 0.1 }]
"""
CHANGING_ARCS = "topology = { p = 0.5, directed = true, redraw_every = 3 }"
WITH_SERVER = {
    "fedavg": ("fraction = 0.5", ""),
    "fedavg, with stragglers": ("fraction = 0.2", STRAGGLERS),
    "fedavg, with faults": ("fraction = 0.5", MISSING),
    "fedavg, secure": ("fraction = 0.9, secure = true", MISSING.replace("0.1", "0.04")),
    "ditto": ("fraction = 0.5", MISSING),
    "ditto, secure": ("fraction = 0.5, secure = true", ""),
    "pfedme": ("fraction = 0.5, lam = 1.5, eta = 0.3", OLD),
    "per-fedavg": ("fraction = 0.5, alpha = 0.2", OLD),
    "flt": ('fraction = 0.5, embedding = 8, manifold = "pca", case = "related", centroids = 2', MISSING),
    "fedsak": ("fraction = 0.5", MISSING),
    "fedavg-c": ('fraction = 0.5, share = "head"', f"{MLP}{MISSING}"),
    "fedsem": ("fraction = 0.5, k = 3", MISSING),
    "ifca": ("fraction = 0.5, k = 3", f'{MISSING}transport.codec = "int8"'),
    "sfmtl-graph": ("fraction = 0.5, lam = 0.5", f"{MLP}{MISSING}"),
    "fedproto": ("fraction = 0.5", f'{MLP}{OLD}transport.codec = "int8"'),
    "fedgh": ("fraction = 0.5", f"{MLP}{OLD}"),
    "sfl": ("fraction = 0.5, layers = 2", f"topology.p = 0.5{OLD}"),
    "pfedhn": (HYPERNETWORK, MISSING),
    "ghn": (f"{HYPERNETWORK}, embedding_rounds = 4", MISSING),
    "shn": (f"{HYPERNETWORK}, embedding_rounds = 3", MISSING),
    "fedrep": ("fraction = 0.5, head_passes = 2", f"{MLP}{OLD}"),
    "fedper": ("fraction = 0.5", f"{MLP}{OLD}"),
    "fedbn": ("fraction = 0.5", f"{NORM}{MISSING}"),
    "apfl": ("fraction = 0.5", OLD),
    "fedavg-ft": ("fraction = 0.5, steps = 2", f'model = {{ kind = "mlp", hidden = [16], dropout = 0.2 }}{OLD}'),
    "scaffold": ("fraction = 0.5", OLD),
    "moon": ("fraction = 0.5", f"{MLP}{OLD}"),
    "fedu": ('fraction = 0.5, relations = "topology"', OLD),
    "fedmtl": ("fraction = 0.5, lam = 0.01", OLD),
}
METHODS = WITH_SERVER | {
    "local": ("", FAULTS),
    "d-psgd": ("", 'transport.protocol = "tcp"'),
    "d2": ("", ""),
    "gradient-tracking": ("", "topology = { p = 0.6, redraw_every = 2 }"),
    "fedrep, neighbours": ("server = false, head_passes = 2", f"{FAULTS}{MLP}"),
    "fedper, neighbours": ("server = false", f"{FAULTS}{MLP}"),
    "fedbn, neighbours": ("server = false", f"{FAULTS}{NORM}"),
    "dfedpgp": ("", f"{MLP}\n{CHANGING_ARCS}"),
    "fedprox": ("fraction = 0.5", MISSING),
    "dfedavgm": ("beta = 0.5", FAULTS),
    "dfedsam": ("gossip_steps = 2", FAULTS),
    "push-sum": ("", "topology = { p = 0.4, directed = true }"),
    "pairwise": ("", ""),
    "dfedu": ("", f'{FAULTS}transport.codec = "top-k"'),
    "sheaf-fmtl": ("start_scale = 0.1", f'model = {{ kind = "cnn", filters = [4] }}{FAULTS}'),
    "sheaf-fmtl, fused": ('exchange = "fused", storage = "factored", start = "orthogonal", lam = 0.05', ""),
    "sheaf-fmtl, rotating": ('start = "shared", eta = 0.0, rotate_every = 2', ""),
    "dac": ("sample = 2", f'{MISSING}transport.codec = "int8"'),
    "pens, with faults": ("first_stage = 3, sample = 2, top = 1", MISSING),
    "dpfl, with faults": ("choose_round = 2", MISSING),
    "dfca": ("k = 3", f'{FAULTS}transport.codec = "int8"'),
    "facade": ("", f"{MLP}{FAULTS}{CHANGING_ARCS}"),
    "selective-sheaf": ('listen = 2, blocks = "head"', f'{MLP}\ntransport.codec = "int8"'),
    "selective-sheaf, seeking": ("listen = 1, probe_every = 2, seek = true", ""),
    "prototype-sheaf": ("sketch = 4", f'{MLP}\ntransport.codec = "int8"'),
    "prototype-sheaf, seeking": ("seek = 5", ""),
    "prototype-sheaf, seeking, with faults": ("compare_every = 3, seek = 2", MISSING),
    "d-psgd, with faults": ("", FAULTS),
    "d-psgd, with faults, on changing graphs": ("", f"{FAULTS}topology = {{ p = 0.6, redraw_every = 2 }}"),
    "d-psgd, with faults, one peer a round": ("", f'{FAULTS}topology.kind = "one-peer-exponential"'),
    "gradient-tracking, one slow peer a round": ("", f'{STRAGGLERS}\ntopology.kind = "one-peer-exponential"'),
    "push-sum, slow, on changing arcs": (
        "",
        f"{STRAGGLERS}\ntopology = {{ p = 0.5, directed = true, redraw_every = 3 }}",
    ),
    "pairwise, with faults": ("", FAULTS),
    "epidemic": ("k = 2", ""),
    "epidemic, with faults": ('k = 2, sampling = "local"', FAULTS),
    "teleportation": ("active = 3", ""),
    "teleportation, with faults": ("", MISSING),
    "ad-psgd": ("", STRAGGLERS),
    "choco-sgd": ("", ""),
    "dispfl": ("density = 0.3", f"{MLP}\n{CHANGING_ARCS}"),
    "dispfl, with faults": ("", f'{FAULTS}transport.codec = "float16"'),
    "divshare": ("fragments = 2, k = 2", ""),
    "divshare, with faults": ("fragments = 3", FAULTS),
    "beer": ('compression = "random-k"', STRAGGLERS),
    "ad-psgd, with faults": ("", OF_MEETINGS),
    "selective-sheaf, seeking, with faults": ("listen = 1, probe_every = 2, seek = true", MISSING),
}
NEED_ALL = {"beer", "choco-sgd", "d2", "dfedpgp", "gradient-tracking", "push-sum"}
SHOWN = "SELECT src, dst, messages, wire_bytes FROM overhead WHERE kind = 'evaluation' ORDER BY dst"
FIGURES = "SELECT node, test_loss, test_metric, global_metric FROM round WHERE"


def text_of(method):
    keys, more = METHODS[method]
    momentum = "0.5" if method in ("fedavg", "fedsak", "sheaf-fmtl", "d-psgd") else "0.0"
    keys = ", ".join(filter(None, [f'name = "{method.partition(",")[0]}"', keys]))
    return CONFIG.replace("MOMENTUM", momentum).replace("KEYS", keys) + more


def figures(folder, round):
    return folder.rows(f"{FIGURES} round = {round} AND test_metric IS NOT NULL ORDER BY node")


def assert_alike(long, short, end):
    """Also in all rounds before: neither run knows in them when it will end."""
    for round in range(end + 1):
        assert figures(long, round) == figures(short, round), round
    found = long.payload()
    for edge, sent in short.payload().items():
        if edge[2] < end:  # in which all download
            assert found[edge] == sent
    assert long.rows("SELECT count(*) FROM node WHERE role = 'client'") == [(len(figures(long, end)),)]


@pytest.mark.parametrize("method", METHODS, scope="module")  # one after the other, a method's tests share its run
def test_threads_have_the_bits_and_bytes_of_processes(run, run_in_processes, method):
    threads, processes = run(text_of(method)), run_in_processes(text_of(method))
    assert_same(threads, processes)
    assert threads.rows(SHOWN) == processes.rows(SHOWN)
    pids = "SELECT count(DISTINCT pid) FROM node WHERE role"
    assert threads.rows(f"{pids} IN ('client', 'server', 'launcher')") == [(1,)]
    assert processes.rows(f"{pids} = 'client'") == [(6,)]


@pytest.mark.parametrize("method", METHODS, scope="module")
def test_an_interrupted_run_ends_with_the_bits_of_an_unbroken_one(run, tmp_path, method):
    whole = run(text_of(method))
    broken = whole.copy(tmp_path / "broken")
    broken.cut_after(5)
    assert run_here_again(broken, "threads").prepared.resumed_at == 3
    assert_same(broken, whole)
    for query in (SHOWN, f"{FIGURES} true ORDER BY round, node"):
        assert broken.rows(query) == whole.rows(query)


def test_every_method_is_here_with_losses_and_a_crash_or_is_refused_there():
    here, in_trouble = (
        {method.partition(",")[0] for method in METHODS if trouble in text_of(method)} for trouble in ("", "loss = ")
    )
    assert here == in_trouble | NEED_ALL == set(ALGORITHMS)
    assert not in_trouble & NEED_ALL


@pytest.mark.parametrize("name", sorted(NEED_ALL))
def test_a_method_that_needs_every_message_is_refused_where_some_are_lost(tmp_path, name):
    text = CONFIG.replace("MOMENTUM", "0").replace("KEYS", f'name = "{name}"')
    told = f"'{name}'.* needs every message, in its own round.*; use time.staleness = 0"
    endless = "would wait for ever .*; the algorithm needs every message, so leave out losses"
    for keys, refusal in ((MISSING, told), ('time.clock = "virtual"\ncompute.step_s = 0.1\nlinks.loss = 0.3', endless)):
        (tmp_path / "config.toml").write_text(f"{text}{MLP}\n{keys}")
        (config,) = load(tmp_path / "config.toml")
        with pytest.raises(UserError, match=refusal):
            work_out(config, tmp_path / "run", Site(tmp_path, "ipc:///nowhere"), None)


@pytest.mark.parametrize("method", WITH_SERVER, scope="module")
def test_a_run_has_in_mid_run_the_figures_of_a_run_that_ends_there(run, method):
    assert_alike(run(text_of(method)), run(text_of(method), f"rounds={END}"), END)


# -- a server that draws clients ---------------------------------------------------------------------------------------

CLIENTS, DRAWN, PLANNED = 6, text_of("fedavg"), text_of("fedavg, with stragglers")


def test_the_models_that_are_shown_for_evaluation_are_no_traffic_and_change_no_model(run):
    overrides = ("checkpoints.every=1", "transport.codec=int8")
    shown, plain = run(DRAWN, *overrides), run(DRAWN, *overrides, "evaluation.every=0")
    assert shown.payload() == plain.payload()
    for round in range(ROUNDS + 1):
        for node, arrays in plain.states(round).items():  # a server's has the answers that it shows, too
            assert all(array.tobytes() == shown.states(round)[node][name].tobytes() for name, array in arrays.items())
    answered = {(dst, round) for src, dst, round in shown.payload() if src == CLIENTS}
    assert {src for src, *_ in shown.rows(SHOWN)} == {CLIENTS}
    assert sum(count for _, _, count, _ in shown.rows(SHOWN)) == CLIENTS * ROUNDS - len(answered)
    assert plain.rows(SHOWN) == []
    assert_alike(shown, run(DRAWN, *overrides, f"rounds={END}"), END)  # it is encoded as the download would be


def test_who_was_away_or_was_not_heard_is_shown_the_common_model_of_the_round(run):
    """Losses, a crash and a deadline: all clients that do a round evaluate what the server has made in it."""
    crash = 'faults=[{ kind = "crash", clients = [2], at_round = 3, restart_after = 2 }]'
    overrides = ("stragglers.fraction=0.5", "time.deadline_s=1.0", "links.loss=0.2", "model.dtype=float64")
    folder = run(PLANNED, crash, *overrides, "checkpoints.every=1")
    shards = folder.shards()
    server = dict(folder.rows(f"SELECT round, virtual_s FROM round WHERE node = {CLIENTS}"))
    clients = folder.rows(f"SELECT round, virtual_s FROM round WHERE node < {CLIENTS}")
    assert all(virtual_s >= server[round] for round, virtual_s in clients)  # not before the server has the model
    for round in range(1, ROUNDS + 1):
        w = folder.theta(round)[CLIENTS]
        for node, _, metric, common in figures(folder, round):
            assert metric == common == accuracy(w, shards[node]), (round, node)
    assert folder.rows("SELECT count(*) FROM round WHERE node = 2") < [(ROUNDS + 1,)]


def test_on_the_wall_clock_a_client_that_was_not_drawn_has_a_common_model_no_older_than_the_round(run):
    folder = run(PLANNED, "time.clock=wall", "compute.step_s=0.01", "checkpoints.every=1")
    shards, common = folder.shards(), {round: folder.theta(round)[CLIENTS] for round in range(ROUNDS + 1)}
    for round in range(ROUNDS + 1):
        for node, _, metric, of_common in figures(folder, round):
            later = {accuracy(common[at], shards[node]) for at in range(round, ROUNDS + 1)}
            assert metric == of_common in later, (round, node)


def test_the_bytes_of_evaluation_are_those_of_the_kernel(run_in_processes):
    folder = run_in_processes(DRAWN, "transport.protocol=tcp", "measuring.kernel=true")
    assert folder.rows(SHOWN)
    comparison = compare_with_kernel(folder.path)
    assert comparison.connections == CLIENTS
    assert comparison.differing == comparison.loose_ends == ()
