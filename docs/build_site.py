"""Build the documentation site: `python docs/build_site.py` writes it to site/, checked, and says where it is.

The pages are copied with their `:::` lines replaced (page_blocks.py), zensical builds them as mkdocs.yml says, and site_links.py
follows every link of the result.  A warning is an error.  The site needs no network and no server: open site/index.html.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from page_blocks import DOCS, ROOT, expand
from site_links import problems

__all__ = ["build", "stage"]


def stage(folder: Path) -> None:
    """Write mkdocs.yml, the theme and the pages to be built to `folder`."""
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for file in sorted(DOCS.rglob("*")):
        target = folder / "docs" / file.relative_to(DOCS)
        if file.suffix == ".md":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(expand(file.read_text(encoding="utf-8"), file.parent), encoding="utf-8")
        elif file.suffix in (".png", ".css", ".js", ".html"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)


def build(site: Path) -> list[str]:
    """Build the site in the folder `site`; what is wrong with it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            stage(folder)
        except ValueError as error:
            return [str(error)]
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
            cwd=folder, env={**os.environ, "NO_COLOR": "1"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        if done.returncode or "No issues found" not in said:
            return [said.strip()]
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(folder / "site", site)
    return problems(site)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=ROOT / "site", help="folder of the site; its contents are replaced")
    site = parser.parse_args().to.resolve()
    if site.exists() and any(site.iterdir()) and not (site / "search.json").exists():
        print(f"{site} holds something other than a site; choose another folder with --to", file=sys.stderr)
        return 2
    if wrong := build(site):
        print(*wrong, sep="\n", file=sys.stderr)
        return 1
    print(f"{len(list(site.rglob('*.html')))} pages; open {site / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
