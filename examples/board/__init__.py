"""Problems and methods of ``sheafgossip board``, and data of one of them."""

import numpy as np

_YEARS = (30, 40, 50, 60)  # of age, at which the next group begins


def patients() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deals the patients of scikit-learn's diabetes data to a client for each age group of women and of men.

    Returns x (442, 8), what was measured of each, y (442,), 1 where the disease went on more than the median, and
    client (442,), which of ten groups."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    age, sex = data.data[:, 0], data.data[:, 1]
    y = data.target > np.median(data.target)
    return data.data[:, 2:], y.astype(int), np.searchsorted(_YEARS, age, side="right") * 2 + (sex == sex.max())
