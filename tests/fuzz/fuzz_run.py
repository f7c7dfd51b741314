"""`make fuzz`: so many inputs for all readers, in proportion to their shares; prints a table."""

from __future__ import annotations

import argparse
import sys

from fuzz_driver import Found, Tally, Target, fuzz, limit_memory, table
from fuzz_targets import TARGETS


def spread(inputs: int, targets: list[Target]) -> dict[str, int]:
    """Return how many inputs each target gets."""
    shares = sum(t.share for t in targets)
    return {t.name: max(1, inputs * t.share // shares) for t in targets}


def main() -> int:
    """Run; 1: an input was found that a reader must not answer as it does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--dice", type=int, default=1)
    parser.add_argument("--only", default="", help="readers whose names begin so")
    parser.add_argument("--twice", action="store_true", help="compare with other bytes behind")
    asked = parser.parse_args()
    chosen = [t for t in TARGETS if t.name.startswith(asked.only)]
    counts, tallies, failed = spread(asked.inputs, chosen), [], False
    limit_memory()
    for target in chosen:
        try:
            tallies.append(fuzz(target, counts[target.name], asked.dice, asked.twice))
        except Found as found:
            failed = True
            print(f"FOUND {found}", flush=True)
            tallies.append(Tally(target.name))
        print(f"{target.name}: {tallies[-1].inputs:,} inputs", file=sys.stderr, flush=True)
    print(table(tallies))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
