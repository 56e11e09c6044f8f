"""Selection matrices Pi_i of hybrid federated learning: clients see some input features each, a server all of them."""

from collections.abc import Sequence

import numpy as np

from .model.architecture import Architecture


def selected(model: Architecture, mine: Sequence[int], theirs: Sequence[int]) -> np.ndarray:
    """Returns the coordinates of theta of a dense ``model`` on the features ``mine`` that the same model on the
    features ``theirs`` has, too: the first layer's weights of the features that both see, and all parameters above
    them. They are in the same order at both."""
    first, *above = model.parameters()
    common = np.tile(np.isin(mine, theirs), first.shape[0])
    return np.flatnonzero(np.append(common, np.ones(sum(block.size for block in above), bool)))
