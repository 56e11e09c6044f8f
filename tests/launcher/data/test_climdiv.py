"""Temperatures of the states as NOAA publishes them (ncei.noaa.gov/pub/data/cirs/climdiv, state-readme.txt)."""

import numpy as np
import pytest

from sheafgossip.launcher.config.data import DataSection
from sheafgossip.launcher.data.pool import DataError
from sheafgossip.launcher.data.sets import load

DEGREES = np.random.default_rng(0).uniform(-5, 90, (3, 48, 12)).round(2)  # years, states, months


def lines(degrees=DEGREES):
    """Three years of the states, and one of Alaska, code 050; the last months of the last year are yet to come."""
    found = [
        f"{state:03}002{year}" + "".join(f"{value:7.2f}" for value in degrees[year - 2018, min(state, 48) - 1])
        for state in (*range(1, 49), 50)
        for year in (2018, 2019, 2020)
        if (state, year) != (50, 2018)
    ]
    return [line[:-14] + " -99.90 -99.90" if line[6:10] == "2020" else line for line in found]


def read(path, **keys):
    return load(DataSection(dataset="sensors", root=path, window=6, horizon=6, **keys), 0)


def test_a_state_is_a_client_and_its_months_are_a_series(tmp_path):
    (tmp_path / "climdiv-tmpcst-v1.0.0-20200106").write_text("\n".join(lines()) + "\n")
    pool = read(tmp_path, years=(2018, 2019))  # the folder, too
    assert (pool.owners[0], pool.owners[47], len(pool.owners), pool.in_time_order) == ("Alabama", "Wyoming", 48, True)
    months = DEGREES[:2, 6].ravel()  # Delaware, code 007
    own = pool.client == 6
    assert pool.owners[6] == "Delaware"
    assert np.allclose(pool.x[own], [months[k : k + 6] for k in range(13)])
    assert np.allclose(pool.y[own], [months[k + 6 : k + 12] for k in range(13)])


@pytest.mark.parametrize(
    ("text", "keys", "complaint"),
    [
        (lines(), {}, "month 11 of 2020 in Alabama is missing; data.years leaves such years out"),
        (lines(), {"years": (2017, 2019)}, "it lacks Alabama in 2017; data.years tells which to take"),
        (lines()[3:], {"years": (2018, 2019)}, "it lacks Alabama in 2018"),
        ([*lines(), "0010022021  1.00"], {}, "line 147 is not that of a state and a year with twelve months"),
        ([line.replace("002", "027", 1) for line in lines()], {}, "needed is 002, a state's mean"),
        (lines(), {"years": (2019, 2018)}, r"data\.years = \[2019, 2018\]: the first is after the last"),
        (lines(), {"years": (2018, 10**9)}, "it lacks Alabama in 2021"),
        ([], {}, "it lacks Alabama in 0"),
    ],
)
def test_a_file_that_is_not_so_is_refused_in_one_line(tmp_path, text, keys, complaint):
    path = tmp_path / "climdiv-tmpcst-v1.0.0-20200106"
    path.write_text("\n".join(text))
    with pytest.raises(DataError, match=complaint) as error:
        read(path, **keys)
    assert "\n" not in str(error.value)


def test_years_are_of_such_a_file_alone(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"data\.years = \[2018, 2019\]: a\.csv is no file climdiv-tmpcst"):
        read(tmp_path / "a.csv", years=(2018, 2019))
