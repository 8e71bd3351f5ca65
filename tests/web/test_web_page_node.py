"""The page's arithmetic is tested wherever its tests run: with Playwright's node, and in CI always."""

import subprocess

import pytest
from page_node import require_node


def test_the_node_of_playwright_runs():
    pytest.importorskip("playwright")
    assert subprocess.run([require_node(), "-p", "6 * 7"], capture_output=True, text=True, check=True).stdout == "42\n"


def test_without_it_tests_are_skipped_and_fail_in_ci(monkeypatch):
    def missing() -> str:
        raise ImportError

    monkeypatch.setattr("page_node.playwright_node", missing)
    monkeypatch.delenv("REGARD_CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="pip install playwright"):
        require_node.__wrapped__()
    monkeypatch.setenv("REGARD_CI", "1")
    with pytest.raises(pytest.fail.Exception, match="pip install playwright"):
        require_node.__wrapped__()
