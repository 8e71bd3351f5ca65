"""`python -m regard.verify 25`: the quick checks of one row, run now, as a page on standard output.

The explorer's server runs this in a process of its own: a check may not slow down the models that are served, nor touch their
random numbers, and can be stopped.
"""

import sys
import time

from regard.verify.catalogue import choose
from regard.verify.machine import describe_machine
from regard.verify.report import About, page
from regard.verify.run import verify

__all__: list[str] = []


def main(row: str) -> None:
    """Check, and print the page."""
    start = time.perf_counter()
    results = list(verify(claim for claim in choose([row]) if not claim.slow))
    about = About(0, describe_machine(), time.strftime("%Y-%m-%d"), time.perf_counter() - start, f"regard verify {row}")
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print(page(results, about, title=f"Claim {row}", back="../claims"))


if __name__ == "__main__":
    main(sys.argv[1])
