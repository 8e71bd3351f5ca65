"""The node that runs the page's modules in tests: the one that comes with Playwright, so that none has to be installed."""

import os
from functools import cache

import pytest


def playwright_node() -> str:
    """The program; ImportError without Playwright."""
    from playwright._impl._driver import compute_driver_executable

    return str(compute_driver_executable()[0])


@cache
def require_node() -> str:
    """The program; without Playwright the test is skipped, but never in CI."""
    try:
        return playwright_node()
    except ImportError:
        (pytest.fail if os.environ.get("REGARD_CI") else pytest.skip)("no node; install it: pip install playwright")
