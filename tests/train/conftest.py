"""The bench of the tests of resuming."""

from collections.abc import Iterator

import pytest
from resume_bench import Bench


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One server for all tests of resuming."""
    bench = Bench(tmp_path_factory.mktemp("resume"))
    yield bench
    bench.server.stdin.close()
    assert bench.server.wait(100) == 0
    bench.server.stdout.close()
