"""Images that cannot be read: left out and listed together, or refused in one line."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from regard.data.image.io import Bytes

__all__ = ["or_reason", "refuse_unreadable", "unreadable_lines"]

NAMED = 10  # images named, of any number


def or_reason(read: Callable[[Path], Bytes], file: Path) -> Bytes | str:
    """The image of a file, or why it cannot be read."""
    try:
        return read(file)
    except ValueError as error:
        return str(error)


def unreadable_lines(name: str, reasons: Sequence[str], total: int) -> list[str]:
    """What to report of images that are left out: a line for the number, a line for each, up to ten."""
    if not reasons:
        return []
    more = [f"  and {len(reasons) - NAMED:,} more"] if len(reasons) > NAMED else []
    head = f"{name}: {len(reasons):,} of {total:,} images cannot be read and are left out (data.strict=true refuses them):"
    return [head, *(f"  {reason}" for reason in reasons[:NAMED]), *more]


def refuse_unreadable(name: str, reasons: Sequence[str], total: int, *, strict: bool = False, lost: Collection[str] = ()) -> None:
    """Refuse any unreadable image if `strict`, most of them, and classes (`lost`) that are left without images."""
    if not reasons:
        return
    named = "; ".join(reason.partition("; ")[0] for reason in reasons[:NAMED])
    named += f"; and {len(reasons) - NAMED:,} more" if len(reasons) > NAMED else ""
    what = f"{name}: {len(reasons):,} of {total:,} images cannot be read ({named})"
    if 2 * len(reasons) > total:
        raise ValueError(f"{what}; that is most of them: replace them, or give other images")
    if lost:
        classes = ", ".join(repr(label) for label in sorted(lost)[:NAMED])
        raise ValueError(f"{what}; no image is left of {classes}: replace them, or remove the folder of that class")
    if strict:
        raise ValueError(f"{what}; replace them, or leave them out with data.strict=false")
