"""Problems and methods of ``sheafgossip board``, and data of some of them."""

import numpy as np

_YEARS = (30, 40, 50, 60)  # of age, at which the next group begins
_FORMS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)  # where each one's digits begin


def patients() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deals the patients of scikit-learn's diabetes data to a client for each age group of women and of men.

    Returns x (442, 8), what was measured of each, y (442,), 1 where the disease went on more than the median, and
    client (442,), which of ten groups."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    age, sex = data.data[:, 0], data.data[:, 1]
    y = data.target > np.median(data.target)
    return data.data[:, 2:], y.astype(int), np.searchsorted(_YEARS, age, side="right") * 2 + (sex == sex.max())


def overlapping() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deals scikit-learn's digits to four groups of three clients each. Group g has half of its images turned by 90 g
    degrees, and half by 90 (g + 1), which the next group has as well.

    Returns x (1797, 8, 8), y (1797,) and client (1797,)."""
    x, y, client = _dealt_digits()
    turns = client // 3 + np.arange(len(x)) // 12 % 2
    return np.stack([np.rot90(image, k) for image, k in zip(x, turns.tolist(), strict=True)]), y, client


def other_heads() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deals scikit-learn's digits to four groups of three clients each, which have the same images and call them by
    other names: in group g a digit's class is 3 g more, modulo 10.

    Returns x (1797, 8, 8), y (1797,) and client (1797,)."""
    x, y, client = _dealt_digits()
    return x, (y + 3 * (client // 3)) % 10, client


def opposed() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deals scikit-learn's digits to twelve clients: to the first six even ones are of class 1, to the others odd ones.

    Returns x (1797, 8, 8), y (1797,) and client (1797,)."""
    x, y, client = _dealt_digits()
    return x, (y + 1 + client // 6) % 2, client


def by_writer() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deals scikit-learn's digits to a client for each of the fourteen forms that they were written on, by thirteen
    people. The data do not name them, but all were to write the same 130 digits: where these begin again a form does.

    Returns x (1797, 8, 8), y (1797,) and client (1797,)."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    client = np.searchsorted(_FORMS, np.arange(len(x)), side="right") - 1
    return x.reshape(-1, 8, 8) / 16, y, client


def _dealt_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))  # they lie by writer
    return x[order].reshape(-1, 8, 8) / 16, y[order], np.arange(len(x)) % 12
