"""Links that the kernel shapes: as fast as they should be, the same models and bytes, and nothing left behind."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from runs import alive, command, small, until
from sheafgossip.launcher.config.sections import validate
from sheafgossip.launcher.prepare.links import Shape
from sheafgossip.launcher.processes import emulation
from sheafgossip.metrics.verification import compare_with_kernel
from sheafgossip.topology import Graph
from sheafgossip.topology.errors import UserError

SLOW = 50_000  # bytes a second
EDGES = f"edges = [{{between = [0, 1], bandwidth = {SLOW}.0}}]"
LINES = (
    "seed = 3",
    "model.hidden = [64]",
    "model.kind = 'mlp'",
    "checkpoints.every = 1",
    "transport = {protocol = 'tcp', emulate = true}",
    "compute.step_s = 0.005",
    f"links = {{uplink = 200000.0, downlink = 400000.0, sharing = 'fair', {EDGES}}}",
)
SHAPED = small(*LINES, "measuring.kernel = true", rounds=2)
LONG = small(*LINES, rounds=10_000)


def why_not() -> str:
    try:
        emulation.require()
    except UserError as error:
        return str(error)
    return ""


needs_root = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


def spaces_of(processes: Iterable[Path]) -> set[str]:
    """Network namespaces that processes are in."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            found.add(str((process / "ns/net").readlink()))
    return found


def seen_here() -> set[str]:
    """Network devices, namespaces with a name, and those that some process is in; not those of other tests."""
    named = [path for folder in ("/sys/class/net", "/run/netns") for path in Path(folder).glob("*")]
    own = {str(path) for path in named if not path.name.startswith("sg-test-")}
    return own | spaces_of(Path("/proc").glob("[0-9]*"))


@needs_root
def test_the_kernel_shapes_links_and_the_models_and_bytes_are_those_without_it(run_in_processes, run_in_threads):
    shaped = run_in_processes(SHAPED)
    planned = run_in_threads(SHAPED, "transport.emulate=false", "measuring.kernel=false", "time.clock=virtual")
    assert planned.thetas(2).tobytes() == shaped.thetas(2).tobytes()
    assert planned.payload() == shaped.payload()
    comparison = compare_with_kernel(shaped.path)
    assert comparison.connections == 4
    assert comparison.differing == comparison.loose_ends == ()
    ((slow,),) = shaped.rows("SELECT sum(wire_bytes) FROM traffic WHERE src = 0 AND dst = 1")
    least = 0.95 * slow / SLOW
    for folder, column in ((planned, "virtual_s"), (shaped, "wall_s")):
        assert folder.rows(f"SELECT max({column}) >= {least} FROM round") == [(1,)]


@needs_root
@pytest.mark.parametrize("ending", ["Ctrl-C", "kill -9 of everything"])
def test_nothing_is_left(start, ending):
    before = seen_here()
    going = start(LONG)
    going.until_round(2)
    processes = going.processes()
    inside = spaces_of(Path("/proc", str(process.pid)) for process in processes) - before
    assert len(inside) == 4
    if ending == "Ctrl-C":
        going.ends(130, lambda: going.signal(signal.SIGINT))
    else:
        going.kill_everything()
    until(lambda: not alive(processes))
    assert not seen_here() & inside
    assert not {each for each in seen_here() - before if each.startswith(("/sys", "/run"))}


def _without_rights() -> None:
    """Takes CAP_SYS_ADMIN from the process that is about to begin."""
    ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can give up its rights")
def test_without_root_one_line_says_so_before_anything_starts(tmp_path):
    (tmp_path / "shaped.toml").write_text(SHAPED)
    said = command("run", "shaped.toml", "--out", "run", code=2, cwd=tmp_path, preexec_fn=_without_rights).stderr
    assert said.count("\n") == 1
    assert "transport.emulate = true: network namespaces need root; allowed: true for root" in said
    assert [path.name for path in tmp_path.iterdir()] == ["shaped.toml"]
    command("plan", "shaped.toml", cwd=tmp_path, preexec_fn=_without_rights)


def test_without_pyroute2_or_what_the_kernel_needs_the_line_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    with pytest.raises(UserError, match=r"it needs pyroute2; allowed: true after .*emulate"):
        emulation.Network(Shape(2))
    assert "lacks network namespaces, veth, bridge or htb" in str(emulation.explained(OSError(2, "no such qdisc")))


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ([{"clients": [0]}], r"links.groups.0.direction = 'both'"),
        ([{"edges": [[0, 1]], "direction": "in"}], r"links.groups.0.edges"),
        ([{"clients": [0, 1], "direction": "in"}, {"clients": [1], "direction": "in"}], "some share another link"),
        ([{"clients": [0], "direction": "in"}, {"clients": [0], "direction": "out"}], ""),
    ],
)
def test_what_the_kernel_is_not_asked_for_is_refused(groups, told):
    groups = [group | {"capacity": 1e6} for group in groups]
    config = validate({"transport": {"protocol": "tcp", "emulate": True}, "links": {"groups": groups}})
    with pytest.raises(UserError, match=told) if told else contextlib.nullcontext():
        assert Shape.of(config, Graph.of(2, [(0, 1)]), {}).cables == {frozenset([0]): (1e6, 1e6)}
    with pytest.raises(UserError, match="clients = 20: with it, the kernel shapes links, by one bridge; allowed: 1 to"):
        Shape.of(config, Graph.of(2000, []), {})
