"""The node that runs the page's modules in tests: the one that comes with Playwright, so that none has to be installed."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

ANSWERS = """
import { createInterface } from "node:readline";
for await (const line of createInterface({ input: process.stdin })) {
  try {
    const value = new Function("modules", `with (modules) return (${JSON.parse(line)});`)(modules);
    console.log(JSON.stringify({ value }));
  } catch (error) {
    console.log(JSON.stringify({ error: String(error.stack) }));
  }
}"""  # each line is an expression


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


@contextmanager
def node_evaluates(modules: Mapping[str, Path]) -> Iterator[Callable[[str], object]]:
    """One process that says the values of expressions of these modules, by the names that they have there."""
    imports = [f'import * as {name} from "{path.as_uri()}";' for name, path in modules.items()]
    code = "\n".join([*imports, f"const modules = {{ {', '.join(modules)} }};", ANSWERS])
    command = [require_node(), "--input-type=module", "-e", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8") as node:
        assert node.stdin is not None
        assert node.stdout is not None

        def evaluate(expression: str) -> object:
            node.stdin.write(json.dumps(expression) + "\n")
            node.stdin.flush()
            answer = json.loads(node.stdout.readline())
            assert "error" not in answer, answer["error"]
            return answer["value"]

        yield evaluate
        node.stdin.close()
