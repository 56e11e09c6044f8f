"""What a process must pay for: the launcher knows models and algorithms without loading torch."""

import os
import subprocess
import sys

from sheafgossip.node.algorithms import ALGORITHMS, libraries_of

HEAVY = ("torch", "torchvision", "pydantic", "typer", "matplotlib", "sklearn", "networkx")


def loaded_by(module: str, watched: tuple[str, ...]) -> set[str]:
    code = f"import sys, {module}; print(*[name for name in {watched} if name in sys.modules])"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # as the fork server, which has no second thread
    return set(subprocess.check_output([sys.executable, "-c", code], text=True, env=environment).split())


def test_knowing_algorithms_and_models_does_not_load_torch():
    known = ", ".join(
        f"sheafgossip.node.{name}" for name in ("algorithms", "model.architecture", "assignment", "client")
    )
    assert loaded_by(known, ("torch", "sheafgossip.node.model.learner")) == set()


def test_a_client_process_loads_no_heavy_library_and_nothing_of_the_launcher():
    ours = ("sheafgossip.launcher", "sheafgossip.metrics.collector")
    assert loaded_by("sheafgossip.node.process.main", (*HEAVY, *ours)) == set()


def test_clients_of_linear_models_live_without_any():
    assert libraries_of(ALGORITHMS["d-psgd"](), ["logistic", "linear"]) == ()
    life = "pathlib, tempfile, sheafgossip.node.process.warm_up as r; r.warm_up(pathlib.Path(tempfile.mkdtemp()) / 'r')"
    assert loaded_by(life, (*HEAVY, "scipy")) == set()


def test_only_models_of_more_than_one_layer_need_torch():
    (models,) = libraries_of(ALGORITHMS["d-psgd"](), ["logistic", "cnn"])
    assert loaded_by(models, HEAVY) == {"torch"}


def test_only_restriction_maps_need_scipy():
    assert not libraries_of(ALGORITHMS["dfedu"](), ["linear"])
    for algorithm in ("sheaf-fmtl", "selective-sheaf"):
        assert "scipy.fft" in libraries_of(ALGORITHMS[algorithm](), ["linear"])
