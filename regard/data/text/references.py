"""Several reference translations of a sentence, from further columns of a table."""

from collections.abc import Sequence

from regard.data.text.rows import Row

__all__ = ["choose_references"]

MIN_OVERLAP = 0.2  # of a column's words that the target column of the same row has, or
MIN_SHARED = 0.5  # that the whole target column has


def choose_references(rows: Sequence[Row], named: int) -> list[list[str]]:
    """The references of each row: the `named` columns after the source, and further ones that read like translations.

    A column reads like a translation if it is about as long as the target and shares its words, more than the source does;
    identifiers, licences and comments do not.
    """
    width = max((len(row) for row in rows), default=0)
    columns = [column for column in range(1, width) if column <= named or _reads_like_target(rows, column)]
    return [[row[column] for column in columns if column < len(row) and (column == 1 or row[column].strip())] for row in rows]


def _reads_like_target(rows: Sequence[Row], column: int) -> bool:
    cells = [(_units(row[column]), _units(row[1]), _units(row[0])) for row in rows if len(row) > column and row[column].strip()]
    if 2 * len(cells) < len(rows):
        return False
    words, targets = (sum(len(cell[side]) for cell in cells) for side in (0, 1))
    if not words or not targets or not 0.5 <= words / targets <= 2:
        return False
    same_row = sum(len(set(cell) & set(target)) for cell, target, _ in cells) / words
    in_targets, in_sources = ({word for cell in cells for word in cell[side]} for side in (1, 2))
    shared, foreign = (sum(word in known for cell, _, _ in cells for word in cell) / words for known in (in_targets, in_sources))
    return (same_row >= MIN_OVERLAP or shared >= MIN_SHARED) and shared > foreign


def _units(text: str) -> list[str]:
    """Words, or the characters of a language without spaces."""
    return words if len(words := text.split()) > 1 or len(text) < 8 else list(text)
