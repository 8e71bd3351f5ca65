"""The claims of the lecture notes as pages of the server."""

import asyncio
import sys
from pathlib import Path

import pytest
from asgi_client import ask
from serving_runs import served_app

from regard.verify.catalogue import all_claims
from regard.web import claims


@pytest.fixture(scope="module")
def app(runs: dict[str, Path]):
    app = served_app(runs)
    yield app
    app.state.serving.close()


def test_all_claims_are_listed_and_quick_ones_have_a_link(app):
    reply = ask(app, "GET", "/claims")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    text = reply.body.decode()
    assert text.count("<article") == len(all_claims())
    for claim in all_claims():
        if claim.check and not claim.slow:
            assert f'href="claims/{claim.row}"' in text


def test_a_claim_is_checked_when_its_page_is_opened(app):
    reply = ask(app, "GET", "/claims/25")
    assert reply.status == 200
    text = reply.body.decode()
    assert "has variance d" in text
    assert "<svg" in text
    assert '<span class="verdict">holds</span>' in text


@pytest.mark.parametrize("row", ["0", "88", "89", "c16", "c29", "25%0a", "../25", "--help", "25 26"])
def test_no_other_claims_are_checked(app, row: str):
    assert ask(app, "GET", f"/claims/{row}").status == 404


def test_a_link_on_another_page_starts_no_check(app):
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ask(app, "GET", "/claims/25", headers=headers).status == 403


def test_a_check_that_takes_too_long_is_stopped(app, monkeypatch):
    started = []
    create = asyncio.create_subprocess_exec

    async def slow(*words: str, **options: object):
        started.append(await create(sys.executable, "-c", "import time; time.sleep(60)", **options))
        return started[0]

    monkeypatch.setattr(claims, "SECONDS", 0.5)
    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow)
    reply = ask(app, "GET", "/claims/25")
    assert (reply.status, "was not checked within" in reply.error) == (503, True)
    assert started[0].returncode is not None or _gone(started[0].pid)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True
