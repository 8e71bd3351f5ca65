"""The claims of the lecture notes as pages of the server: /claims lists them, /claims/25 checks one now."""

import asyncio
import os
import sys
from contextlib import suppress
from functools import cache

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from regard.verify.catalogue import all_claims
from regard.verify.claim import Claim, Verdict
from regard.verify.report import page
from regard.verify.run import THREADS, Result
from regard.web.batching import OutOfTime, QueueFull
from regard.web.routes import BadRequest

__all__ = ["add_claims"]

SECONDS = 60.0  # until a check is stopped
WAITING = 4  # checks that may wait for the one that runs
POLL = 0.25  # seconds after which the client is looked at again


def add_claims(app: FastAPI) -> None:
    """Add the pages to the app."""
    turn, waiting = asyncio.Semaphore(1), 0

    @app.api_route("/claims", methods=["GET", "HEAD"], include_in_schema=False)
    async def claims() -> Response:
        """All claims, not yet checked, the quick ones with a link that checks them."""
        return HTMLResponse(await asyncio.to_thread(_list))

    @app.api_route("/claims/{row}", methods=["GET"], include_in_schema=False)
    async def claim(row: str, request: Request) -> Response:
        """Check a claim now, one at a time, and answer with its measurements."""
        nonlocal waiting
        if row not in await asyncio.to_thread(_rows):
            raise BadRequest(f"no claim {row[:20]!r} that is checked in seconds; /claims lists them", 404)
        if waiting > WAITING:
            raise QueueFull("the claims", WAITING, 10.0)
        waiting += 1
        try:
            async with turn:
                return HTMLResponse(await _check(row, request))
        finally:
            waiting -= 1


async def _check(row: str, request: Request) -> str:
    """The page that a process of its own prints; it is stopped if it takes too long, or if the client has gone."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "regard.verify", row,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": str(THREADS)})  # fmt: skip
    answer = asyncio.ensure_future(child.communicate())
    try:
        for _ in range(int(SECONDS / POLL)):
            done, _ = await asyncio.wait([answer], timeout=POLL)
            if done:
                break
            if await request.is_disconnected():
                raise OutOfTime("the client has gone")
        else:
            raise OutOfTime(f"claim {row} was not checked within {SECONDS:.0f} seconds; try again when the machine is less busy")
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        out, err = await answer  # closes the pipes
    if child.returncode:
        raise RuntimeError(f"the check of claim {row} ended with code {child.returncode}: {err.decode(errors='replace')[-500:]}")
    return out.decode()


@cache
def _rows() -> frozenset[str]:
    return frozenset(claim.row for claim in all_claims() if claim.check and not claim.slow)


@cache
def _list() -> str:
    found = [
        Result(claim, Verdict.NOT_CHECKABLE if claim.check is None else Verdict.SKIPPED, reason=_why(claim))
        for claim in all_claims()
    ]
    return page(found, link=lambda claim: "" if claim.slow else f"claims/{claim.row}", back="./")


def _why(claim: Claim) -> str:
    if claim.check is None:
        return claim.why_not
    return f"Its check takes longer; run it with: regard verify {claim.row}" if claim.slow else ""
