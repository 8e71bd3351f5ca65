"""Formatting inside a block of text: each mark is replaced by a short tag, <g1>, </g1> or <g2/>, that a translation must keep.

A translation has the tags where its words are.  If they do not nest there, they are put in their first order instead.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, NamedTuple

__all__ = ["Mark", "from_tags", "to_tags"]

_TAG = re.compile(r"</?g\d+/?>")


class Mark(NamedTuple):
    """A mark between texts: what it opens or closes, or neither; `name` says which closing mark belongs to which opening one."""

    kind: Literal["open", "close", "empty"]
    name: str = ""


def to_tags(parts: Sequence[str | Mark]) -> tuple[str, list[str]]:
    """The text with a tag for each mark, and the tags in their order."""
    tags, written, count = list[str](), list[str](), 0
    opened = defaultdict[str, list[int]](list)  # numbers of the marks that are open, by name
    for part in parts:
        if isinstance(part, str):
            written.append(part)
            continue
        if part.kind == "close" and opened[part.name]:
            tags.append(f"</g{opened[part.name].pop()}>")
        else:
            count += 1
            tags.append(f"<g{count}>" if part.kind == "open" else f"<g{count}/>")
            if part.kind == "open":
                opened[part.name].append(count)
        written.append(tags[-1])
    return "".join(written), tags


def from_tags(answer: str, tags: Sequence[str]) -> list[str | int]:
    """The texts of a translation, and between them the numbers of the marks, from 0; each mark once, nested as before."""
    pieces = list[str | int]()
    left, at = {tag: number for number, tag in enumerate(tags)}, 0
    for found in _TAG.finditer(answer):
        if found[0] in left:
            pieces += [answer[at : found.start()], left.pop(found[0])]
            at = found.end()
    pieces.append(answer[at:])
    pieces += left.values()  # lost ones go to the end
    order = [piece for piece in pieces if isinstance(piece, int)]
    if not _nested([tags[number] for number in order]):
        numbers = iter(range(len(tags)))
        pieces = [next(numbers) if isinstance(piece, int) else piece for piece in pieces]
    return [piece for piece in pieces if piece != ""]


def _nested(tags: Sequence[str]) -> bool:
    stack = list[str]()
    for tag in tags:
        if tag.startswith("</"):
            if not stack or stack.pop() != tag[2:]:
                return False
        elif not tag.endswith("/>"):
            stack.append(tag[1:])
    return True
