"""Each mistake that an author can make is one line that says what is wrong, before any client is started."""

import pytest

import sheafgossip as sg

HEAD = """
from dataclasses import dataclass
from typing import Annotated
import numpy as np
import sheafgossip as sg
from annotated_types import Gt
from torch import nn


@dataclass(frozen=True)
class Good(sg.Algorithm):
    way: Annotated[float, Gt(0)] = 0.5
    def round(self, client, peers):
        client.learn()

"""
FROZEN = "@dataclass(frozen=True)\nclass Own(Good):\n    "
NAMED = 'algorithm.use = "mine.py:Own"'
MODEL = 'model.use = "mine.py:make"'
DATA = 'data.use = "mine.py:load"'
OPTIMIZER = 'training.optimizer = {{ use = "{}" }}'
METRIC = 'evaluation.metrics = [{ use = "mine.py:own" }]'
STEPS = OPTIMIZER.format("mine.py:Steps")
TORCHS = "import torch\nclass Steps(torch.optim.SGD):\n    "
MISTAKES = {  # {what: (text of the file, lines of the configuration, what is said)}
    "no such file": ("", 'algorithm.use = "other.py:Own"', "other.py:Own': there is no such file"),
    "no colon": ("", 'algorithm.use = "mine.py"', 'write "FILE.py:NAME", or "package.module:NAME"'),
    "no text": ("", "algorithm.use = 3", "algorithm.use = 3: must be a string"),
    "no such class": ("", 'algorithm.use = "mine.py:Goood"', r"has no Goood \(did you mean Good\?\)"),
    "no such package": ("", 'algorithm.use = "nothing.here:Own"', "ModuleNotFoundError: No module named 'nothing'"),
    "no Python": ("x = (1", NAMED, r"SyntaxError: '\(' was never closed \(mine.py, line 16\)"),
    "fails when loaded": ("y = 1 / 0", NAMED, r"ZeroDivisionError: .* \(mine.py, line 16, .*: y = 1 / 0\)"),
    "no class": ("Own = 5", NAMED, "Own is no subclass of sheafgossip.Algorithm"),
    "no algorithm": ("class Own: pass", NAMED, "Own is no subclass of sheafgossip.Algorithm"),
    "no dataclass": ("class Own(Good): pass", NAMED, r"Own needs @dataclass\(frozen=True\) above it"),
    "no round": ("@dataclass(frozen=True)\nclass Own(sg.Algorithm): x: int = 1", NAMED, "Own has no method round"),
    "no key": (f"{FROZEN}x: np.ndarray = None", NAMED, "a field of Own is no key: .*numpy.ndarray"),
    "missing": (
        "@dataclass(frozen=True, kw_only=True)\nclass Own(Good):\n    x: float", NAMED, "algorithm.x is missing"),
    "out of bounds": (f"{FROZEN}pass", f"{NAMED}\nalgorithm.way = 0.0", "algorithm.way = 0.0: must be greater than 0"),
    "unknown": (f"{FROZEN}pass", f"{NAMED}\nalgorithm.wey = 1.0", r"algorithm.wey: unknown key \(did you mean way\?\)"),
    "no traits": (f"{FROZEN}traits = 1", NAMED, r"Own.traits = 1: must be sheafgossip.Traits\(...\)"),
    "unknown trait": (f"{FROZEN}traits = sg.Traits(same=True)", NAMED, r"TypeError: .*'same'.*line 18"),
    "no list": (f"{FROZEN}messages = lambda self, edge: 5", NAMED, "Own.messages: returned 5; it has to be a list"),
    "no length": (f"{FROZEN}messages = lambda self, edge: [sg.Vector(0.5)]", NAMED, "the length is a whole number"),
    "no attribute": (f"{FROZEN}messages = lambda self, edge: [edge.d]", NAMED, r"AttributeError: .*, line 18"),
    "does not fit": (f"{FROZEN}def check(self, run): raise sg.SettingsError('way', 'no')", NAMED, "^way: no$"),
    "unequal models": (
        f"{FROZEN}traits = sg.Traits(same_size=True)",
        f'{NAMED}\nmodel.mix = [{{ kind = "mlp", hidden = [4] }}]',
        "algorithm.name = 'own': compares whole models",
    ),
    "wrong signature": (f"{FROZEN}def messages(self): return []", NAMED, r"cannot be called as messages\(self, edge\)"),
    "round is a field": (
        "@dataclass(frozen=True)\nclass Own(sg.Algorithm): round: int = 1", NAMED, "Own.round cannot be called as ro"),
    "default out of bounds": (f"{FROZEN}x: Annotated[float, Gt(0)] = -1.0", NAMED, "algorithm.x = -1.0: must be gr"),
    "default of another type": (f"{FROZEN}x: float = 'half'", NAMED, "algorithm.x = 'half': must be a"),
    "bound on a text": (f"{FROZEN}x: Annotated[str, Gt(0)] = 'a'", NAMED, "a bound of a field does not fit: .*'gt'"),
    "mutable default": (f"{FROZEN}x: list = []", NAMED, r"mutable default <class 'list'> for field x .*line 16"),
    "no facts": (f"{FROZEN}def facts(self, run): return 5", NAMED, r"Own.facts: returned int; .*sheafgossip.Facts\("),
    "no cost": (f"{FROZEN}def cost(self, own): return 5", NAMED, r"Own.cost: returned int; .*sheafgossip.Cost\("),
    "no work": (f"{FROZEN}def work(self, own, round): return 5", NAMED, r"Own.work: returned int; .*sheafgossip.Work"),
    "less than no work": (
        f"{FROZEN}def work(self, own, round): return sg.Work(gradients=-2)",
        NAMED,
        r"Own.work: returned Work\(gradients=-2,.*at least 0",
    ),
    "no pattern": (f"{FROZEN}def pattern(self, run): return 5", NAMED, r"Own.pattern: returned int; .*GraphSequence\("),
    "others' pattern": (
        f"{FROZEN}def pattern(self, run): return sg.GraphSequence((sg.Graph.of(99, []),))",
        NAMED,
        "Own.pattern: returned graphs of 99 clients; the run has",
    ),
    "an empty pattern": (f"{FROZEN}def pattern(self, run): return sg.GraphSequence(())", NAMED, "needs one or more"),
    "meetings one way": (
        f"{FROZEN}traits = sg.Traits(meets=True)\n    "
        "def pattern(self, run): return sg.GraphSequence((sg.Graph.of(run.clients, [(0, 1)], directed=True),))",
        f"{NAMED}\ntime.clock = 'virtual'",
        "clients that meet by time have one undirected graph",
    ),
    "relative import": ("from .other import x", NAMED, r"ImportError: attempted relative import .*\(mine.py, line 16"),
    "leaves": ("raise SystemExit('no')", NAMED, r"SystemExit: no \(mine.py, line 16"),
    "runs itself": (f"{FROZEN}pass\nsg.run({{'clients': 2}}, algorithm=Own())", NAMED, "makes runs of itself while"),
    "no text file": ("\0", NAMED, "null bytes"),
    "large": ("#" * (4 << 20), NAMED, "is larger than 4 MB"),
    "several lines": ("raise ValueError('one\\ntwo')", NAMED, r"ValueError: one two \(mine.py, line 16"),
    "no function": ("make = 5", MODEL, "model.use = .*: is no function that makes a model"),
    "wrong arguments": ("def make(shape): pass", MODEL, r"cannot be called with \(\(1, 8, 8\), 10\): make\(\) takes 1"),
    "unknown option": (
        "def make(shape, outputs): pass",
        f"{MODEL}\nmodel.options.width = 3",
        r"cannot be called with \(\(1, 8, 8\), 10, width=3\)",
    ),
    "no module": ("def make(shape, outputs): return 5", MODEL, "returned int for .*; it has to be a torch.nn.Module"),
    "nothing to learn": ("def make(shape, outputs): return nn.Flatten()", MODEL, "has no parameter that is trained"),
    "wrong samples": ("def make(shape, outputs): return nn.Linear(7, outputs)", MODEL, r"of shape \(1, 8, 8\): "),
    "wrong outputs": (
        "def make(shape, outputs): return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))",
        MODEL,
        r"makes shape \(4, 3\) of 4 samples; it has to be \(4, 10\)",
    ),
    "fails when made": ("def make(shape, outputs): return shape[7]", MODEL, r"IndexError: .*, line 16, in make"),
    "no head": (
        "def make(shape, outputs): return nn.Sequential(nn.Conv2d(1, outputs, 8), nn.Flatten())",
        f'{MODEL}\nalgorithm = {{ name = "sfmtl-graph" }}',
        "its last layer must be torch.nn.Linear with a bias",
    ),
    "both kinds": ("", f'{MODEL}\nmodel.kind = "cnn"', "model.kind = 'cnn': with use it is \"own\""),
    "no word": ("", 'training.optimizer = "adamm"', "'adamm'; allowed: 'sgd', .*, or a table with the key use"),
    "no optimizer": ("def Steps(): pass", STEPS, "is no subclass of torch.optim.Optimizer"),
    "another's option": (
        "",
        'training.optimizer = { use = "torch.optim:Adagrad", options = { rho = 1 } }',
        "cannot be made with lr=0.1 and options {'rho': 1}: TypeError: .*'rho'",
    ),
    "a closure": ("", OPTIMIZER.format("torch.optim:LBFGS"), "cannot take a step: .* required .* 'closure'"),
    "stands still": (f"{TORCHS}def step(self): pass", STEPS, "its steps leave the parameters where they are"),
    "fails at a step": (f"{TORCHS}def step(self): 1 / 0", STEPS, r"a step: ZeroDivisionError: .* \(mine.py, line 18"),
    "forgets": (
        f"{TORCHS}n = 0\n    def step(self): self.n += 1; self.param_groups[0]['lr'] *= self.n; super().step()",
        STEPS,
        "keeps more than tensors and numbers of parameters and groups",
    ),
    "steps of its own": (
        "",
        f"{OPTIMIZER.format('torch.optim:Adagrad')}\nalgorithm.name = 'pfedme'",
        "training.optimizer = 'torch.optim:Adagrad': the local steps of .* are its own, by plain SGD",
    ),
    "no number": ("def own(z, y): return z.mean(0)", METRIC, r"returned ndarray; it has to be a number"),
    "fails on outputs": (
        "def own(z, y): return z[0, 99]", METRIC, r", 10\) and targets .* IndexError: .* \(mine.py, line 16, in own"),
    "taken": ("", 'evaluation.metrics = [{ use = "mine.py:mse" }]', "name = 'mse': that is what .* own test metric is"),
    "no samples": ("def load(): return 3", DATA, "data.use = .*: returned int; allowed are"),
    "unknown data option": (
        "def load(): return 3",
        f"{DATA}\ndata.options.samples = 3",
        r"cannot be called with \(samples=3\): load\(\) got an unexpected keyword",
    ),
    "no pairs": (
        "import torch\ndef load(): return torch.utils.data.TensorDataset(torch.ones(9, 2))",
        DATA,
        r"returned TensorDataset, whose items must be \(x, y\) or \(x, y, client\)",
    ),
    "a stream": (
        "import torch\nclass Mine(torch.utils.data.IterableDataset):\n    def __iter__(self): yield 1, 2\n"
        "    def __len__(self): return 9\ndef load(): return Mine()",
        DATA,
        "samples of Mine can't be read: NotImplementedError",
    ),
    "fails at a sample": (
        "import torch\nclass Mine(torch.utils.data.Dataset):\n    def __len__(self): return 9\n"
        "    def __getitem__(self, at): return 1 / 0\ndef load(): return Mine()",
        DATA,
        r"ZeroDivisionError: .* \(mine.py, line 19, in __getitem__",
    ),
    "unequal lengths": ("def load(): return np.ones((9, 2)), np.ones(8, int)", DATA, "x has 9 samples and y has 8"),
    "ragged": ("def load(): return [[1, 2], [3]], [0, 1]", DATA, "x is no array: "),
    "one class": ("def load(): return np.ones((9, 2)), np.ones(9, int)", DATA, "y holds one class only"),
    "not a number": ("def load(): return np.ones((9, 2)) * np.nan, np.arange(9) % 2", DATA, "x holds NaN"),
    "too few": ("def load(): return np.ones((9, 2)), np.arange(9) % 2", DATA, "clients"),
    "fails": ("def load(): return 1 / 0", DATA, r"ZeroDivisionError: .* \(mine.py, line 16, in load"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_told_in_a_line(tmp_path, monkeypatch, mistake):
    text, lines, told = MISTAKES[mistake]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(HEAD + text)
    (tmp_path / "mine.toml").write_text(f"clients = 4\nrounds = 2\ndata.samples = 0\n{lines}\n")
    with pytest.raises(sg.Error, match=told) as error:
        sg.run("mine.toml", quiet=True)
    assert len(str(error.value).splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.py", "mine.toml"]


EXCHANGE = "peers.exchange(dict.fromkeys(client.neighbours, client.theta))"
IN_A_CLIENT = {  # {what: (body of the round, what is said)}
    "raises": ("if peers.round == 2: raise ValueError('two')", r"in round 2: ValueError: two \(mine.py, line 19"),
    "leaves": ("raise SystemExit(3)", r"SystemExit: 3 \(mine.py, line 19"),
    "no state": ("pass\n    def begin(self, client): return {}", r"Own.begin: returned dict; .* sheafgossip.State\("),
    "no array": ("pass\n    def begin(self, client): return sg.State(x={1: [2]})", "client.state.x.1: list; arrays of"),
    "no client's": ("pass\n    def begin(self, client): return sg.State(x={'a': 1})", "state.x: the key 'a' is no"),
    "another length": ("peers.exchange(dict.fromkeys(client.neighbours, np.ones(5)))", r"not float64 \(5,\)"),
    "no vector": ("peers.exchange({j: [1.0] for j in client.neighbours})", r"announced as float32 \(650,\), not list"),
    "no mapping": ("peers.exchange([client.theta])", r"exchange takes \{neighbour: vector\}, not list"),
    "a stranger": ("peers.exchange({(client.node + 2) % 4: client.theta})", r"2 is no neighbour of this client: 1, 3"),
    "hears a stranger": ("peers.exchange({}, senders=[7])", "7 is no neighbour"),
    "once too often": (f"{EXCHANGE}; {EXCHANGE}", "vector 2 to client 1 in round 1 is one more than ann"),
    "forgets": (f"client.node == 1 or {EXCHANGE}", "client 1 sent nothing for 1 s in round 1"),
    "written to": (f"{EXCHANGE}[1][:] = 0", "read-only"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", IN_A_CLIENT)
def test_in_a_client_it_is_told_with_the_authors_line(tmp_path, monkeypatch, mistake):
    body, told = IN_A_CLIENT[mistake]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(f"{HEAD}{FROZEN}def round(self, client, peers):\n        {body}\n")
    config = {"clients": 4, "rounds": 2, "data.samples": 80, "topology.kind": "ring", "transport.timeout": 1.0}
    with pytest.raises(sg.RunError, match=told) as error:
        sg.run(config, {"algorithm.use": "mine.py:Own"}, quiet=True, engine="threads")
    assert "Traceback" not in str(error.value)
