"""Makes day-and-night.csv, a trace of 100 clients over a day of 240 s, ten seconds an hour: 50 phones that are there
while they charge at night, 30 laptops that are there by day and closed at noon, and 20 desktops that always are.

    python examples/day-and-night.py > examples/day-and-night.csv
"""

import random

HOUR_S, DAY_S = 10, 240
KINDS = ["phone"] * 50 + ["laptop"] * 30 + ["desktop"] * 20
HOURS = {"phone": [(20, 32)], "laptop": [(7, 12), (13, 22)], "desktop": [(0, 24)]}
UP_DOWN_SPEED = {
    "phone": (100_000, 500_000, 0.5),
    "laptop": (500_000, 2_500_000, 1),
    "desktop": (5_000_000, 10_000_000, 2),
}


def stretches(rng: random.Random, kind: str) -> list[tuple[float, float]]:
    """When a client is there, within the day; what goes on after midnight is there in the morning, too."""
    shift, found = rng.gauss(0, 1), []  # hours: people rise early or late
    for start, end in HOURS[kind]:
        since = (start + shift + rng.uniform(-0.5, 0.5)) * HOUR_S
        until = max(since + 5, (end + shift + rng.uniform(-0.5, 0.5)) * HOUR_S)
        if kind == "desktop":
            since, until = 0, DAY_S
        parts = [(since - turn, until - turn) for turn in (-DAY_S, 0, DAY_S)]
        found += [(max(0, a), min(DAY_S, b)) for a, b in parts if a < DAY_S and b > 0]
    return sorted(found)


def main() -> None:
    rng = random.Random(0)
    rng.shuffle(KINDS)
    print("client,from,until,available,up,down,speed")
    for client, kind in enumerate(KINDS):
        print(client, 0, DAY_S, "", *UP_DOWN_SPEED[kind], sep=",")
        reached = 0.0
        for since, until in [*stretches(rng, kind), (DAY_S, DAY_S)]:
            since, until = round(since, 1), round(until, 1)
            if since > reached:
                print(client, f"{reached:g}", f"{since:g}", 0, "", "", "", sep=",")
            reached = max(reached, until)


if __name__ == "__main__":
    main()
