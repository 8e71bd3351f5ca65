"""A server with an API key, in a browser: it asks for the key as a password, once, and the page then works."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import serve
from serving_runs import served_app

KEY = "correct-horse-battery"


@pytest.fixture(scope="module")
def address(runs: dict[str, Path]) -> Iterator[str]:
    yield from serve(served_app(runs, ("learner",), api_key=KEY))


def test_the_page_works_with_the_key_as_password(new_page, address):
    page = new_page(http_credentials={"username": "anyone", "password": KEY})
    with page.expect_response("**/api/v1/runs") as runs:
        assert page.goto(address).status == 200
    assert runs.value.status == 200
    assert runs.value.json()["runs"][0]["name"] == "learner"
