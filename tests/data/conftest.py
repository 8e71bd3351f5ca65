"""Every test of the data starts with an empty cache."""

import pytest


@pytest.fixture(autouse=True)
def empty_cache(cache):
    return cache
