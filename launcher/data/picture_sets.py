"""Published sets of pictures whose labels are in files of their own: CompCars and Adience."""

import re
from collections import Counter

import numpy as np

from ..config.data import DataSection
from .files import Source
from .pictures import read_lines, read_pictures
from .pool import Pool, some

_TYPES = ("MPV", "SUV", "sedan", "hatchback")  # 1 to 4 of CompCars' twelve
_VIEWS = ("front", "rear", "side", "front-side", "rear-side")  # 1 to 5; -1 is uncertain
_YEARS = range(2009, 2015)
_NUMBER = re.compile(r"\d{1,6}", re.ASCII)
_CAR = re.compile(r"(\d+)/(\d+)/(\d{4})/[^/]+\.jpg")
_AGES: tuple[tuple[int, ...], ...] = ((0, 2), (4, 6), (8, 12), (15, 20), (25, 32), (38, 43), (48, 53), (60, 100))
_SAME_AGES: dict[tuple[int, ...], tuple[int, ...]] = {
    (8, 13): (8, 12),
    (38, 48): (38, 43),
    (38, 42): (38, 43),
}  # as some lines of Adience's lists have them
_GENDERS = "fm"


def load_compcars(section: DataSection) -> Pool:
    """Types of cars, of the years 2009 to 2014 and five viewpoints, each year and viewpoint an owner, as Xu and others
    2022 and Nguyen and others 2024 take them (Yang, Luo, Loy and Tang 2015,
    mmlab.ie.cuhk.edu.hk/datasets/comp_cars): data/image/MAKE/MODEL/YEAR/NAME.jpg, data/label/MAKE/MODEL/YEAR/NAME.txt
    with the viewpoint in its first line, data/misc/attributes.txt with a line a model: its number first, its type
    last."""
    source = Source.of(section, "the folder with CompCars' folder data")
    data = source.path / "data" if (source.path / "data").is_dir() else source.path
    attributes = data / "misc" / "attributes.txt"
    if not attributes.is_file() or not (data / "image").is_dir():
        raise source.wrong("it lacks data/image or data/misc/attributes.txt of CompCars")
    rows = [line.split() for line in read_lines(attributes)[1:]]
    if bad := [row for row in rows if len(row) != 6 or not (_NUMBER.fullmatch(row[0]) and _NUMBER.fullmatch(row[5]))]:
        raise source.wrong(
            f"attributes.txt: {' '.join(bad[0])!r}: a line has six columns, the model first, its type last"
        )
    types = {int(row[0]): int(row[5]) for row in rows}
    paths, labels, owners = [], [], []
    for path in sorted((data / "image").glob("*/*/*/*.jpg")):
        place = path.relative_to(data / "image")
        found = _CAR.fullmatch(place.as_posix())
        if not found or int(found[3]) not in _YEARS or not 1 <= types.get(int(found[2]), 0) <= len(_TYPES):
            continue  # of an unknown year, or another type
        viewpoint = "".join(read_lines((data / "label" / place).with_suffix(".txt"))[:1]).strip()
        if viewpoint not in {"-1", *map(str, range(1, len(_VIEWS) + 1))}:
            raise source.wrong(
                f"label {place.with_suffix('.txt')} begins with {viewpoint!r}: viewpoints are -1, 1 to 5"
            )
        if viewpoint != "-1":
            paths.append(path)
            labels.append(types[int(found[2])] - 1)
            owners.append((int(found[3]) - _YEARS[0]) * len(_VIEWS) + int(viewpoint) - 1)
    if len(set(labels)) < 2:
        raise source.wrong(
            f"it holds no pictures of {', '.join(_TYPES)} of {_YEARS[0]} to {_YEARS[-1]}, or of one alone"
        )
    names = tuple(f"{year} {view}" for year in _YEARS for view in _VIEWS)
    x = read_pictures(source, paths, section.image_size)
    return Pool(x, np.array(labels), "classification", len(_TYPES), 255.0, np.array(owners), names)


def load_adience(section: DataSection) -> Pool:
    """Faces in eight groups of age and two genders (Eidinger, Enbar and Hassner 2014,
    talhassner.github.io/home/projects/Adience): class 2 a + g of the a-th group of age, g = 1 of men, so that the task
    pairs tells the age and parity the gender. fold_0_data.txt to fold_4_data.txt have columns user_id, original_image,
    face_id, age, gender, .. between tabs; a picture is aligned/USER/landmark_aligned_face.FACE.ORIGINAL. The last fold
    is the official test set."""
    source = Source.of(section, "the folder with Adience's fold_0_data.txt to fold_4_data.txt and aligned")
    paths, labels, tests, left_out = [], [], [], Counter[str]()
    for fold in range(5):
        header, *rows = [line.split("\t") for line in read_lines(source.path / f"fold_{fold}_data.txt")] or [[]]
        if header[:5] != ["user_id", "original_image", "face_id", "age", "gender"]:
            raise source.wrong(
                f"fold_{fold}_data.txt does not begin with user_id, original_image, face_id, age, gender"
            )
        for number, row in enumerate(rows, 2):
            if len(row) < 5 or "/" in "".join(row[:3]):
                raise source.wrong(f"line {number} of fold_{fold}_data.txt has {len(row)} columns, or a path in one")
            user, original, face, age, gender = row[:5]
            ages = tuple(map(int, re.findall(r"\d{1,3}", age)))
            ages = _SAME_AGES.get(ages, ages)
            if ages not in _AGES or gender not in tuple(_GENDERS):
                left_out[f"age {age}, gender {gender or 'none'}"] += 1
                continue
            paths.append(source.path / "aligned" / user / f"landmark_aligned_face.{face}.{original}")
            labels.append(2 * _AGES.index(ages) + _GENDERS.index(gender))
            tests.append(fold == 4)
    if not paths:
        raise source.wrong("its lists name no face of a group of age and a gender")
    told = [f"{count:,} with {what}" for what, count in left_out.most_common()]
    x = read_pictures(source, paths, section.image_size)
    classes = len(_AGES) * len(_GENDERS)
    left = (f"left out: {some(told, 3)}",) if told else ()
    return Pool(x, np.array(labels), "classification", classes, 255.0, tests=np.array(tests), told=left)
