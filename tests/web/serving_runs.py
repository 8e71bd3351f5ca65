"""Runs for tests of the server: one that has learned, one that continues texts, one that embeds them."""

from pathlib import Path

from regard.web.explorer import ServedRun
from regard.web.server import Settings, create_app


def served_app(runs: dict[str, Path], names: tuple[str, ...] = ("learner", "gpt", "bert"), **settings: object):
    """An app of some of the tiny runs, by name."""
    return create_app([ServedRun.open(runs[name], name, "cpu") for name in names], Settings(**settings))
