"""Attack the library with random cases: ``python -m tests.fuzz --minutes 30``."""

from __future__ import annotations

import argparse
import sys

from tests.fuzz.run import KINDS, attack, run_case, write

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--only", choices=KINDS, help="one kind of case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="one case alone, as a finding names it")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    asked = parser.parse_args()
    if asked.case is None:
        kinds = [asked.only] if asked.only else list(KINDS)
        sys.exit(attack(kinds, asked.seed, asked.minutes, asked.jobs))
    run_case(asked.only or "inputs", asked.seed, asked.case, shows=True)
    write("nothing found")
