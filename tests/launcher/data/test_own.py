"""What a function of the user's may return: all forms give the same samples."""

import numpy as np
import pytest

import sheafgossip as sg
from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load

HEAD = """
import numpy as np
x = np.arange(48.0).reshape(24, 2)
y = np.arange(24) % 3
client = np.array(["Ann", "Bo"])[np.arange(24) % 2]
"""
TORCH = "import torch\nfrom torch.utils.data import *\na, b, c = map(torch.tensor, (x, y, np.arange(24) % 2))\n"
CLASS = """class Mine(Dataset):
    def __init__(self, *parts): self.parts = parts
    def __len__(self): return 24
    def __getitem__(self, number):
        if number >= 24: raise IndexError
        return tuple(part[number] for part in self.parts)
"""
HUGGING = "from datasets import Dataset, DatasetDict\nwhole = Dataset.from_dict({'x': x, 'y': y, 'client': client})\n"
FORMS = {  # {what: (what comes first, what is returned, whether owners are told, whether tests are)}
    "tuple": ("", "x, y, client", True, False),
    "dict": ("", "{'x': x, 'y': y}", False, False),
    "parts": (
        "def part(*rows): return x[slice(*rows)], y[slice(*rows)], client[slice(*rows)]\n",
        "{'train': part(9), 'validation': part(9, 16), 'test': part(16, 24)}",
        True,
        True,
    ),
    "tensors": (TORCH, "TensorDataset(a, b)", False, False),
    "tensors with owners": (TORCH, "TensorDataset(a, b, c)", True, False),
    "subsets": (
        TORCH,
        "{'train': Subset(TensorDataset(a, b), range(16)), 'test': Subset(TensorDataset(a, b), range(16, 24))}",
        False,
        True,
    ),
    "map-style": (TORCH + CLASS, "Mine(a, b)", False, False),
    "map-style with owners": (TORCH + CLASS, "Mine(x, y.tolist(), client.tolist())", True, False),
    "joined": (TORCH, "ConcatDataset([TensorDataset(a[:9], b[:9]), TensorDataset(a[9:], b[9:])])", False, False),
    "hugging face": (HUGGING, "whole", True, False),
    "hugging face, as torch": (HUGGING, "whole.with_format('torch')", True, False),
    "hugging face in parts": (
        f"{HUGGING}def part(*rows): return whole.select(range(*rows))\n",
        "DatasetDict(train=part(9), validation=part(9, 16), test=part(16, 24))",
        True,
        True,
    ),
    "hugging face in a dict": (
        HUGGING,
        "{'train': whole.select(range(16)), 'test': whole.select(range(16, 24))}",
        True,
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_samples(tmp_path, form):
    first, returned, owned, tested = FORMS[form]
    if "datasets" in first:
        pytest.importorskip("datasets", reason="such a function imports it")
    (tmp_path / "mine.py").write_text(f"{HEAD}{first}\n\ndef load():\n    return {returned}\n")
    pool = load(DataSection(use=f"{tmp_path}/mine.py:load"), 0)
    assert pool.x.tolist() == np.arange(48.0).reshape(24, 2).tolist()
    assert pool.y.tolist() == (np.arange(24) % 3).tolist()
    assert (pool.client is not None) == owned
    assert not owned or pool.client.tolist() == (np.arange(24) % 2).tolist()
    assert (pool.tests is not None) == tested
    assert not tested or pool.tests.tolist() == [False] * 16 + [True] * 8


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("whole.to_iterable_dataset()", "returned IterableDataset; allowed are "),
        ("DatasetDict(unsupervised=whole)", "its splits are unsupervised; allowed are train, validation, test"),
        (
            "whole.rename_column('x', 'z').remove_columns('y')",
            'there is no column "target" .*its columns are z, client',
        ),
        ("Dataset.from_dict({'x': ['a b', 'c'], 'y': [0, 1]})", 'x is column "x", which is text'),
        ("{'train': whole, 'test': (x, y)}", "returned Dataset"),
    ],
)
def test_what_a_data_set_of_hugging_face_lacks_is_told_in_a_line(tmp_path, returned, said):
    pytest.importorskip("datasets", reason="such a function imports it")
    (tmp_path / "mine.py").write_text(f"{HEAD}{HUGGING}\n\ndef load():\n    return {returned}\n")
    with pytest.raises(DataError, match=f"data.use = .*: .*{said}") as error:
        load(DataSection(use=f"{tmp_path}/mine.py:load"), 0)
    assert "\n" not in str(error.value)


def test_options_reach_the_function_and_are_recorded(tmp_path):
    text = "def load(samples, scale=1):\n    return np.ones((samples, 2)) * scale, np.arange(samples) % 2\n"
    (tmp_path / "mine.py").write_text("import numpy as np\n\n" + text)
    options = {"samples": 40, "scale": 2.5}
    config = {"clients": 2, "rounds": 1, "data": {"use": f"{tmp_path}/mine.py:load", "options": options}}
    run = sg.run(config, out=tmp_path / "run", quiet=True, engine="threads")
    assert run.config["data"]["options"] == options
    assert run.nodes.query("role == 'client'")[["train_samples", "test_samples"]].sum().sum() == 40
    with pytest.raises(
        sg.Error, match=r"cannot be called with \(samples=40, scale=2.5, sample=3\): load\(\) got an unexpected keyword"
    ):
        sg.run(config, {"data.options": {"sample": 3}}, out=tmp_path / "other", quiet=True)
