"""Mean temperatures of the 48 contiguous states, in NOAA's file nClimDiv, which TPT-48 is taken from."""

import numpy as np

from .files import Source
from .pool import DataError

NAME = "climdiv-tmpcst"
_NAMES = """Alabama Arizona Arkansas California Colorado Connecticut Delaware Florida Georgia Idaho Illinois Indiana
Iowa Kansas Kentucky Louisiana Maine Maryland Massachusetts Michigan Minnesota Mississippi Missouri Montana Nebraska
Nevada New-Hampshire New-Jersey New-Mexico New-York North-Carolina North-Dakota Ohio Oklahoma Oregon Pennsylvania
Rhode-Island South-Carolina South-Dakota Tennessee Texas Utah Vermont Virginia Washington
West-Virginia Wisconsin Wyoming"""
_STATES = _NAMES.split()
_LARGEST = 1 << 26  # the published file has less than 2 MB
_MONTHS = 12


def find(source: Source) -> Source:
    """Returns the one such file of a folder, else what is given."""
    found = sorted(source.path.glob(f"{NAME}*")) if source.path.is_dir() else []
    return Source(found[0]) if len(found) == 1 else source


def read_climdiv(source: Source, years: tuple[int, int] | None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns degrees Fahrenheit, float32 (months, 48), and the states' names. Raises DataError. A line is a state and
    a year: columns 1-3 the state's code, 001 to 048 those of the states by name, 4 a division, 0 for the whole state,
    5-6 the element, 02 for mean temperatures, 7-10 the year, then twelve months of 7 columns each, -99.90 where there
    is none (ncei.noaa.gov/pub/data/cirs/climdiv/state-readme.txt)."""
    source.require_file()
    if source.path.stat().st_size > _LARGEST:
        raise source.wrong(f"it has more than {_LARGEST >> 20} MB, the most that is read")
    found: dict[tuple[int, int], list[float]] = {}
    try:
        text = source.path.read_text("ascii", errors="replace")
    except OSError as error:
        raise source.wrong(f"it can't be read: {error.strerror}") from error
    for number, line in enumerate(text.splitlines(), 1):
        head, cells = line[:10], [line[10 + 7 * month : 17 + 7 * month] for month in range(_MONTHS)]
        try:
            state, year, values = int(head[:3]), int(head[6:]), [float(cell) for cell in cells]
        except ValueError:
            raise source.wrong(f"line {number} is not that of a state and a year with twelve months") from None
        if head[3:6] != "002":
            raise source.wrong(f"line {number} has division and element {head[3:6]}; needed is 002, a state's mean")
        if state <= len(_STATES):  # others are Alaska, and regions
            found[year, state] = values
    there = sorted({year for year, _ in found})
    first, last = years or (there or [0, 0])[:: max(len(there) - 1, 1)]
    if first > last:
        raise DataError.of("data.years", list(years or ()), "the first is after the last", "two years in order")
    wanted = []
    for each in ((year, state) for year in range(first, last + 1) for state in range(1, len(_STATES) + 1)):
        if each not in found:
            raise source.wrong(f"it lacks {_STATES[each[1] - 1]} in {each[0]}; data.years tells which to take")
        wanted.append(found[each])
    degrees = np.array(wanted, np.float32).reshape(-1, len(_STATES), _MONTHS)
    if len(gaps := np.argwhere(~np.isfinite(degrees) | (degrees <= -99.9))):
        year, state, month = gaps[0]
        of = f"month {month + 1} of {first + year} in {_STATES[state]}"
        raise source.wrong(f"{of} is missing; data.years leaves such years out")
    return np.moveaxis(degrees, 2, 1).reshape(-1, len(_STATES)), tuple(_STATES)
