r"""What a tokenizer.json of unknown origin may not contain: patterns of exponential time, replacements that make a text huge.

A backtracking engine tries all ways in which the repetitions of a pattern can share a text: (a+)+ has 2ⁿ of them for n letters.
Patterns of published tokenizers repeat only single characters and classes, such as `\s+|\p{L}+`.
"""

from collections.abc import Iterator

__all__ = ["require_bounded_growth", "require_safe_patterns"]

MAX_PATTERN = 4096  # characters
MAX_UNBOUNDED = 3  # repetitions in a row: the time grows as this power of the length of a word
MAX_COUNT = 1000  # of a{n}
MAX_CONTENT = 100  # characters that a part of a tokenizer writes into a text; published ones write one or two
MAX_GROWTH = 1000  # how many times longer all replacements together may make a text


def require_safe_patterns(tokenizer: object) -> None:
    """Refuse a parsed tokenizer.json with a pattern that may take exponential time, or is not text."""
    parts = tokenizer if isinstance(tokenizer, dict) else {}
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        for pattern in _patterns(parts.get(name)):
            if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN or (why := _hazard(pattern)):
                reason = (
                    why if isinstance(pattern, str) and len(pattern) <= MAX_PATTERN else f"more than {MAX_PATTERN} characters"
                )
                shown = repr(pattern)[:80]
                raise ValueError(f"its {name} has the pattern {shown} ({reason}), which may take endless time; use a tokenizer "
                                 f"without it")  # fmt: skip


def require_bounded_growth(tokenizer: object) -> None:
    """Refuse a parsed tokenizer.json that may make a text very much longer, or writes very long strings into it."""
    parts = tokenizer if isinstance(tokenizer, dict) else {}
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        growth, total = 1, 0
        for table in _tables(parts.get(name)):
            kind = table.get("type")
            for key in ("content", "prepend", "prefix", "suffix", "replacement"):
                content = table.get(key)
                if isinstance(content, str) and len(content) > MAX_CONTENT:
                    raise ValueError(f"its {name} has a {kind} with {key} of {len(content):,} characters; use a tokenizer "
                                     f"without it, at most {MAX_CONTENT} are read")  # fmt: skip
                total += len(content) if isinstance(content, str) and kind == "Prepend" else 0
            if kind == "Replace" and isinstance(content := table.get("content"), str):
                pattern = table.get("pattern")
                text = pattern.get("String") if isinstance(pattern, dict) else None
                length = len(text) if isinstance(text, str) else 0  # a regular expression may match nothing
                growth *= max(1, -(-len(content) // length) if length else len(content) + 1)
            if growth > MAX_GROWTH or total > MAX_GROWTH:
                raise ValueError(f"its {name} may make a text over {MAX_GROWTH:,} times longer; use a tokenizer without these "
                                 f"replacements")  # fmt: skip
    model = parts.get("model")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        affix = model.get(key) if isinstance(model, dict) else None
        if isinstance(affix, str) and len(affix) > MAX_CONTENT:
            raise ValueError(f"its model has a {key} of {len(affix):,} characters; at most {MAX_CONTENT} are read: use a "
                             f"tokenizer without it")  # fmt: skip


def _tables(part: object) -> Iterator[dict[str, object]]:
    """All tables of a part, also those inside others."""
    waiting = [part]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part


def _patterns(part: object) -> Iterator[object]:
    """All values of the key Regex."""
    yield from (table["Regex"] for table in _tables(part) if "Regex" in table)


class _Group:
    """What is inside a pair of brackets, or the whole pattern."""

    def __init__(self) -> None:
        self.repeats = False  # whether anything inside is repeated a variable number of times
        self.chooses = False  # whether it has alternatives
        self.unbounded = 0  # repetitions without a limit, of this alternative
        self.most = 0  # and of the alternative that has most


def _hazard(pattern: str) -> str:
    """Why matching a pattern may take long; empty if it does not."""
    groups, closed, at = [_Group()], None, 0
    while at < len(pattern):
        char, before, closed = pattern[at], closed, None
        if char == "\\":
            if pattern[at + 1 : at + 2].isdigit() or pattern[at + 1 : at + 2] in ("k", "g"):
                return "a back-reference"
            at = pattern.find("}", at) + 1 if pattern[at + 1 : at + 3] in ("p{", "P{", "x{") and "}" in pattern[at:] else at + 2
            continue
        if char == "[":
            at = _class_end(pattern, at)
            continue
        if char == "(":
            groups.append(_Group())
            at += 1
            if pattern[at : at + 1] == "?":  # (?:, (?=, (?i:, (?<name>
                if pattern[at + 1 : at + 2] not in (":", "=", "!", "i", "m", "s", "x", "-", ">", "<"):
                    return "an unknown kind of group"
                while at < len(pattern) and pattern[at] not in (":", "=", "!", ">", ")"):
                    at += 1
                at += 0 if pattern[at : at + 1] == ")" else 1
            continue
        if char == ")" and len(groups) > 1:
            closed = groups.pop()
            closed.most = max(closed.most, closed.unbounded)
            groups[-1].repeats |= closed.repeats
            groups[-1].unbounded += closed.most
            at += 1
            continue
        if char == "|":
            group = groups[-1]
            group.chooses, group.most, group.unbounded = True, max(group.most, group.unbounded), 0
        least, most, length = _quantifier(pattern, at)
        if length:
            if most > MAX_COUNT and most != float("inf"):
                return f"a repetition of over {MAX_COUNT}"
            if most > 1 and before is not None and (before.repeats or before.chooses):
                return "a repetition of a group with repetitions or alternatives"
            groups[-1].repeats |= least != most  # a{3} is always as long
            groups[-1].unbounded += most == float("inf")
            at += length
            closed = None
        else:
            at += 1
        if max(groups[-1].unbounded, groups[-1].most) > MAX_UNBOUNDED:
            return f"more than {MAX_UNBOUNDED} repetitions in a row"
    return ""


def _quantifier(pattern: str, at: int) -> tuple[float, float, int]:
    """How often the quantifier at a place repeats at least and at most, and its length; 0 if there is none."""
    if pattern[at] in "*+?":
        least, most = float(pattern[at] == "+"), 1.0 if pattern[at] == "?" else float("inf")
        length = 1
    elif pattern[at] == "{" and (end := pattern.find("}", at)) > 0:
        low, comma, high = pattern[at + 1 : end].partition(",")
        if not (low or high) or not all(part == "" or (part.isdecimal() and len(part) < 9) for part in (low, high)):
            return 1, 1, 0
        least, most = float(low or 0), float(high or "inf") if comma else float(low)
        length = end + 1 - at
    else:
        return 1, 1, 0
    while pattern[at + length : at + length + 1] in ("?", "+", "*"):  # lazy, possessive, or again
        most = float("inf") if pattern[at + length] != "?" and most > 1 else most
        length += 1
    return least, most, length


def _class_end(pattern: str, at: int) -> int:
    """The place after a class such as [^a-z\\]] or [a[b-c]]."""
    depth = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
        elif pattern[at] == "[":
            depth += 1
            if pattern[at + 1 : at + 2] == "^":
                at += 1
            if pattern[at + 1 : at + 2] == "]":  # the first one is a member
                at += 1
        elif pattern[at] == "]":
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return at
