"""All claims, and how a user names some of them."""

from collections.abc import Collection, Sequence
from importlib import import_module

from regard.config import nearest
from regard.verify.claim import NOTES, Claim, registered

__all__ = ["CHAPTERS", "all_claims", "choose"]

# In the order of the notes; each is a module of this folder, whose docstring says what the chapter is about.
CHAPTERS = (
    "words", "scores", "scaling", "heads", "order", "recurrence", "complexity", "position", "norms",
    "transformer", "inference", "pretraining", "vit", "vision", "multimodal", "superposition",
)  # fmt: skip


def all_claims() -> list[Claim]:
    """Every claim, in the order of the inventory."""
    for chapter in CHAPTERS:
        import_module(f"regard.verify.{chapter}")
    return registered()


def choose(rows: Sequence[str] = (), notes: str | None = None, only: str | None = None, slow: bool = False) -> list[Claim]:
    """The claims of these rows, all of them; or all quick ones, with `slow` also the slow ones, of a file or a chapter."""
    claims = all_claims()
    known = {claim.row for claim in claims}
    for row in rows:
        if row.lower() not in known:
            raise ValueError(f"no claim {row!r}; rows are 1 to 88, and c1 to c28 for corrections (see `regard verify --list`)")
    if notes is not None and notes not in NOTES:
        raise ValueError(f"no notes {notes!r}; the lecture notes are {', '.join(NOTES)}")
    if only is not None and only not in CHAPTERS:
        raise ValueError(f"no chapter {only!r}{nearest(only, CHAPTERS)}; chapters are {', '.join(CHAPTERS)}")
    wanted: Collection[str] = {row.lower() for row in rows} or known
    return [
        claim for claim in claims
        if claim.row in wanted and (notes is None or notes in claim.notes) and (only is None or only == claim.chapter)
        and (slow or rows or not claim.slow)
    ]  # fmt: skip
