"""Check the JSDoc types of the explorer page: `python tests/web/tsc.py`, which `make lint` calls.

The page itself needs no build step and no package.  The pinned compiler is fetched once into the virtual environment; the node
that runs it comes with Playwright, so neither node nor npm has to be installed.
"""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

from page_node import playwright_node

VERSION = "5.9.3"
SHA256 = "10e108c9cf7d5f2879053dff18515fb405abf2ccef63eaaf017d9c571687a1d3"
ADDRESS = f"https://registry.npmjs.org/typescript/-/typescript-{VERSION}.tgz"
ROOT = Path(__file__).parents[2]


def compiler() -> Path:
    """The file tsc.js, fetched unless it is there."""
    folder = Path(sys.prefix) / f"typescript-{VERSION}"
    program = folder / "package" / "lib" / "tsc.js"
    if not program.exists():
        with urllib.request.urlopen(ADDRESS, timeout=60) as answer:
            content = answer.read()
        if (found := hashlib.sha256(content).hexdigest()) != SHA256:
            raise OSError(f"{ADDRESS} has SHA-256 {found}, not {SHA256}")
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(part := folder.with_name(f"{folder.name}.part"), filter="data")
        part.replace(folder)  # whole or not at all
    return program


def main() -> int:
    """Exit code 0 if there is no type error."""
    required = bool(os.environ.get("REGARD_CI"))
    try:
        node, program = playwright_node(), compiler()
    except (ImportError, OSError) as error:
        print(f"types of regard/web/page not checked: {error}", file=sys.stderr)
        return int(required)  # CI never skips
    return subprocess.run([node, program, "--project", ROOT / "tsconfig.json"], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
