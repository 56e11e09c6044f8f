"""Tries numbered cases, a few at once: PYTHONPATH=tests python -m chaos --seeds 0-99."""

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from .generator import Case, case_of, simpler_case
from .trial import Verdict, trial

REFUSED_AT_MOST = 0.25  # of all cases: a generator whose cases are mostly refused tries nothing
_KEPT = Path("build/chaos")


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description="Random runs full of faults, held against their plans.")
    parser.add_argument("--seeds", default="0-19", help="a number, or the first and the last: 0-499")
    parser.add_argument("--methods", default="", help="only cases of these algorithms: ifca,dfca")
    parser.add_argument("--jobs", type=int, default=2, help="how many cases at once")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="look for a simpler case that fails, 5 minutes long")
    parser.add_argument("--show", type=int, metavar="SEED", help="print the case, and run nothing")
    given = parser.parse_args()
    if given.show is not None:
        print(case_of(given.show).toml)
        return 0
    if given.shrink is not None:
        return _shrink(given.shrink)
    first, _, last = given.seeds.partition("-")
    cases = {seed: case_of(seed) for seed in range(int(first), int(last or first) + 1)}
    methods = given.methods.split(",") if given.methods else {case.method for case in cases.values()}
    return _try_all({seed: case for seed, case in cases.items() if case.method in methods}, given.jobs)


def _try_all(cases: dict[int, Case], jobs: int) -> int:
    began, verdicts = time.monotonic(), dict[int, Verdict]()
    with ThreadPoolExecutor(jobs) as pool:
        tried = {pool.submit(trial, case, _KEPT / f"{seed}"): seed for seed, case in cases.items()}
        for future in as_completed(tried):
            seed = tried[future]
            verdicts[seed] = future.result()
            _tell(seed, cases[seed], verdicts[seed])
    counts = Counter(each.verdict for each in verdicts.values())
    resumed = sum(each.resumed for each in verdicts.values())
    print(
        f"\n{len(cases)} seeds in {(time.monotonic() - began) / 60:.1f} minutes: {counts['fine']} fine, "
        f"{counts['refused']} refused before the start, {counts['wrong']} wrong; {resumed} times resumed after a kill"
    )
    methods = Counter(case.method for case in cases.values())
    print("methods: " + ", ".join(f"{method} {count}" for method, count in sorted(methods.items())))
    if wrong := [str(seed) for seed in cases if verdicts[seed].verdict == "wrong"]:
        print(f"wrong: {', '.join(wrong)}; their folders are in {_KEPT}")
    if too_many := counts["refused"] > REFUSED_AT_MOST * len(cases) + 1:
        print(f"too many are refused: at most {REFUSED_AT_MOST:.0%} should be")
    return int(bool(wrong or too_many))


def _tell(seed: int, case: Case, verdict: Verdict) -> None:
    print(f"seed {seed}: {verdict.verdict}, {verdict.seconds:.1f} s ({case.title})", flush=True)
    if verdict.verdict == "wrong":
        print(f"\n# seed {seed}\n{case.toml}")
        print("\n".join(f"  {problem}" for problem in verdict.problems) + "\n", flush=True)


def _shrink(seed: int) -> int:
    wrong: list[tuple[Case, Verdict]] = []

    def is_wrong(case: Case) -> bool:
        verdict = trial(case)
        if verdict.verdict == "wrong":
            wrong.append((case, verdict))
            print(f"wrong, {verdict.seconds:.1f} s ({case.title}): {verdict.problems[0][:200]}", flush=True)
        return verdict.verdict == "wrong"

    if simpler_case(seed, is_wrong) is None:
        print(f"seed {seed} is not wrong")
        return 0
    print("\nThe simplest case that was wrong:\n")
    _tell(seed, *wrong[-1])
    return 1


if __name__ == "__main__":
    sys.exit(main())
