"""What /openapi.json says is what the server does: schemathesis makes requests of it, and finds no 5xx and no untrue answer.

Two passes: requests as they are made, most of which name a run or a record that does not exist; and with names that do.
"""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import requests
import schemathesis
from conftest import serve
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
from serving_runs import served_app

from regard.web.security import Limits

FEW = settings(max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
# that a request which fits the description is never refused cannot be: it may name a run that does not exist
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
MIN_OPERATIONS = 15


@pytest.fixture(scope="module")
def address(runs: dict[str, Path]) -> Iterator[str]:
    yield from serve(served_app(runs, limits=Limits(seconds=20)))


@pytest.fixture(scope="module")
def described(address: str) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{address}/openapi.json")


@pytest.fixture(scope="module")
def record(address: str) -> str:
    return requests.post(f"{address}/api/v1/runs/learner/inspect", json={"text": "I love you very much"}).json()["id"]


def every_operation(schema: schemathesis.BaseSchema, change: Callable[[schemathesis.Case], None]) -> None:
    """Make a few requests of each operation, change them, and check what comes back against the description."""
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= MIN_OPERATIONS
    for operation in operations:

        @FEW
        @given(case=operation.as_strategy())
        def requests(case: schemathesis.Case) -> None:
            change(case)
            case.call_and_validate(checks=CHECKS)

        requests()


def test_requests_as_they_are_made(described):
    every_operation(described, lambda case: None)


def test_requests_about_what_exists(described, record):
    def name(case: schemathesis.Case) -> None:
        chosen = hashlib.sha256(repr((case.body, case.query)).encode()).digest()
        run = ("learner", "gpt", "bert")[chosen[0] % 3]
        names = {"run": run, "record": record, "layer": str(chosen[1] % 4), "model": run}
        case.path_parameters |= {key: value for key, value in names.items() if key in case.path_parameters}
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = run
        if isinstance(case.body, dict) and "target" in case.body:
            case.body |= {"source": ("en", "auto")[chosen[0] % 2], "target": "it"}

    every_operation(described, name)
