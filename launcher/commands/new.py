"""``sheafgossip new``: files to begin with."""

import re
from pathlib import Path

from ...metrics.text import show
from ..config.sections import ConfigError
from ..run.folder import relative

_ALGORITHM = '''"""NAME: in a line, what is new about it."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

import sheafgossip as sg


@dataclass(frozen=True)
class CLASS(sg.Algorithm):
    """Each client learns, then goes part of the way to the mean of its neighbours' models.

    theta_i <- theta_i - alpha grad f_i(theta_i)
    theta_i <- theta_i + way (mean_j theta_j - theta_i)
    """

    way: Annotated[float, Ge(0), Le(1), "Share of the way to the neighbours' mean."] = 0.5

    traits = sg.Traits(same_size=True)  # it compares whole models

    def round(self, client, peers):
        client.learn()
        theirs = peers.exchange(dict.fromkeys(client.neighbours, client.theta))
        if theirs:  # in a scenario, messages may be lost
            mean = sum(theirs.values()) / len(theirs)
            client.theta += self.way * (mean - client.theta)
'''

_TEST = '''"""Run it with pytest."""

import sheafgossip as sg
from MODULE import CLASS


def test_it_is_its_matrix_form():
    network = sg.testing.Network(CLASS(way=0.3), rounds=5)
    theta = network.start  # (clients, parameters)
    for _ in range(network.rounds):
        theta = theta - network.alpha * network.gradients(theta)
        theta = theta + 0.3 * (network.means(theta) - theta)
    network.assert_ends_at(theta)


def test_it_keeps_the_promises_of_an_algorithm():
    sg.testing.check(CLASS())
'''

_CONFIG = """\
# sheafgossip run MODULE.toml
clients = 10
rounds = 50
topology = { kind = "ring" }
training = { work = "full", alpha = 0.5 }
algorithm = { use = "MODULE.py:CLASS", way = 0.5 }
"""

_EXPERIMENT = """\
# sheafgossip run MODULE.toml
# docs/configuration.md, or `sheafgossip config schema`, describes every key; each may be left out.
clients = 10
rounds = 50
seed = 0                      # every random draw follows from it

[topology]
kind = "erdos-renyi"          # ring, complete, torus, ..., or file
p = 0.4                       # probability of an edge

[data]
dataset = "digits"            # comes with scikit-learn; yours: npz, table, huggingface
reduced_clients = 0.5         # half of the clients ...
reduced_to = 0.2              # ... have a fifth of their training data left

[training]
work = "full"                 # one step a round on all samples; or steps, epochs
alpha = 0.5                   # step size

[[compare]]                   # one run for each of these tables, and one table of results
algorithm = { name = "local" }

[[compare]]
algorithm = { name = "d-psgd" }

[[compare]]
algorithm = { name = "dfedu", lam = 0.3 }
"""


def experiment(name: str, folder: Path) -> None:
    """Writes a configuration with comments, that runs as it is. Raises ConfigError; overwrites nothing."""
    _write(name, folder, {f"{name}.toml": _EXPERIMENT.replace("MODULE", name)}, f"{name}.toml")


def algorithm(name: str, folder: Path) -> None:
    """Writes an algorithm that runs, its test and a configuration. Raises ConfigError; overwrites nothing."""
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)
    if not re.fullmatch(r"[A-Za-z][\w-]*", name) or not words:
        raise ConfigError(f"NAME = {name!r}: allowed are letters, digits, - and _, such as half-way")
    module, kind = "_".join(words).lower(), "".join(word[0].upper() + word[1:] for word in words)
    texts = {f"{module}.py": _ALGORITHM, f"test_{module}.py": _TEST, f"{module}.toml": _CONFIG}
    for file, text in texts.items():
        texts[file] = text.replace("NAME", name).replace("CLASS", kind).replace("MODULE", module)
    _write(name, folder, texts, f"{module}.toml")


def _write(name: str, folder: Path, texts: dict[str, str], to_run: str) -> None:
    if not re.fullmatch(r"[A-Za-z][\w-]*", name):
        raise ConfigError(f"NAME = {name!r}: allowed are letters, digits, - and _, such as half-way")
    if there := [file for file in texts if (folder / file).exists()]:
        raise ConfigError(f"{folder / there[0]}: exists; nothing is overwritten, choose another name")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
        show(f"written: {relative((folder / file).resolve())}")
    show(f"run it: sheafgossip run {relative((folder / to_run).resolve())}")
