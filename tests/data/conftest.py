"""Tests of the data leave the user's cache, data folder and mirror alone."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder; the one of `regard` lies inside it."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.delenv("REGARD_MIRROR", raising=False)
    return folder / "regard"
