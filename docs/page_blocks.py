"""Pages with the lines that begin with `:::` replaced by what they name, so that a page cannot differ from the code.

    ::: source regard/layers/attention.py attend            a function, a class or a method (Attention.forward)
    ::: source FILE NAME "first words" "last words"         of it, the lines from the first that has these words to the last
    ::: source FILE * "first words" "last words"            lines of the file itself
    ::: api regard.load                                     signature and docstring of a public name
    ::: verb train                                          usage, arguments and options of a verb
    ::: keys regard/config.py TrainConfig train             keys of a config class, with the comments beside them

A `source` line stands inside a code block.  Links that leave docs/ are for readers of the repository; in the site only their
text stays.
"""

import ast
import os
import re
import shlex
import textwrap
from pathlib import Path

import page_reference

__all__ = ["ROOT", "expand", "source"]

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def expand(text: str, folder: Path) -> str:
    """The text of a page in `folder`, with all its `:::` lines replaced."""
    lines = []
    for line in text.splitlines():
        kind, *words = shlex.split(line[4:]) if line.startswith("::: ") else [""]
        try:
            match kind:
                case "":
                    lines.append(line)
                case "source":
                    lines.append(source(*words))
                case "api":
                    lines.append(page_reference.public_name(*words))
                case "verb":
                    lines.append(page_reference.verb(*words))
                case "keys":
                    lines.append(page_reference.keys(ROOT / words[0], *words[1:]))
                case _:
                    raise ValueError(f"no block {kind!r}; there are source, api, verb and keys")
        except (TypeError, IndexError, KeyError, AttributeError, OSError) as error:
            raise ValueError(f"{line!r} names nothing: {error!r}") from error
    return _without_links_out("\n".join(lines) + "\n", folder)


def source(file: str, name: str, first: str = "", last: str = "") -> str:
    """Lines of a file of the repository, without their common indent, below a comment that says where they are from."""
    text = (ROOT / file).read_text(encoding="utf-8")
    lines = text.splitlines()
    if name != "*":
        node: ast.AST = ast.parse(text)
        for part in name.split("."):
            node = _member(node, part, f"{file} {name}")
        assert isinstance(node, ast.ClassDef | ast.FunctionDef)
        decorators = [decorator.lineno for decorator in node.decorator_list]
        lines = lines[min([node.lineno, *decorators]) - 1 : node.end_lineno]
    start = _find(lines, first, 0, f"{file} {name}")
    stop = _find(lines, last, start, f"{file} {name}") if last else len(lines) - 1
    return f"# {file}\n" + textwrap.dedent("\n".join(lines[start : stop + 1])).strip("\n")


def _member(node: ast.AST, name: str, where: str) -> ast.AST:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and child.name == name:
            return child
    raise ValueError(f"{where}: no {name} there; name a function, a class or a method")


def _find(lines: list[str], words: str, start: int, where: str) -> int:
    for i, line in enumerate(lines[start:], start):
        if words in line:
            return i
    raise ValueError(f"{where}: no line has {words!r}")


def _without_links_out(text: str, folder: Path) -> str:
    """A link to a file that is not of the site becomes its text."""

    def keep(link: re.Match[str]) -> str:
        target = link[2].partition("#")[0]
        inside = not target or "://" in target or Path(os.path.normpath(folder / target)).is_relative_to(DOCS)
        return link[0] if inside else link[1]

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", keep, text)
