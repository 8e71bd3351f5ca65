"""Rows of JSON: one object on each line (JSONL), or one array of objects.  Keys may be nested: translation.en."""

import codecs
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from regard.data.files import MAX_LINE, BadLine, gzip_errors, open_bytes, read_lines_checked
from regard.data.text.columns import DEFAULT, choose_languages, column_names, require_agreement
from regard.data.text.rows import BadRow, Row, bad_row

__all__ = ["lookup", "read_json", "read_jsonl"]

CHUNK = 1 << 16  # bytes read at once
MAX_KEYS = 1000  # of nested objects, among which languages are looked for


def read_jsonl(file: Path, columns: str, pair: str = "", lenient: bool = False) -> Iterator[Row | BadRow]:
    """Stream the rows of a JSONL file."""
    keys = _Keys(file, columns, pair, lenient)
    for number, line in enumerate(read_lines_checked(file), 1):
        if isinstance(line, BadLine):
            yield bad_row(line)
        elif line.strip():
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                yield BadRow(number, "is not JSON", f"{error.msg}, column {error.colno}")
            except (RecursionError, ValueError):  # ValueError: a number of thousands of digits
                yield BadRow(number, "is nested too deeply or has a number too long", "give an object with two texts")
            else:
                yield _row(value, keys.of(value), number)


def read_json(file: Path, columns: str, pair: str = "", lenient: bool = False) -> Iterator[Row | BadRow]:
    """Stream the objects of a JSON array, without reading it at once; numbers of bad ones count objects."""
    keys, decoder = _Keys(file, columns, pair, lenient), json.JSONDecoder()
    text, number, ended = "", 0, False
    with gzip_errors(file), open_bytes(file) as stream:
        decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        while True:
            chunk = stream.read(CHUNK)
            try:
                text += decode(chunk, final=not chunk)
            except UnicodeDecodeError:
                raise ValueError(f"{file} is not UTF-8; save it as UTF-8, or `iconv -f cp1252 -t utf-8`") from None
            if number == 0:
                text = text.lstrip()
                if not text and chunk:
                    continue
                if text[:1] != "[":
                    raise ValueError(f"{file} does not start with [; wanted an array of objects; name a file of one object on "
                                     "each line .jsonl")  # fmt: skip
                text, number = text[1:], 1
            while not ended:
                text = text.lstrip(" \t\r\n,")
                if text[:1] == "]":
                    ended = True
                    break
                try:
                    value, end = decoder.raw_decode(text)
                except RecursionError:
                    raise ValueError(f"{file} is nested too deeply in its object {number}; give objects with two texts") from None
                except ValueError:  # the rest of the object has not been read yet, or it is not JSON
                    break
                if end == len(text) and chunk:
                    break  # a number may go on in the next chunk
                yield _row(value, keys.of(value), number)
                text, number = text[end:], number + 1
            if ended:
                return
            if not chunk or len(text) > MAX_LINE:
                why = "is not JSON" if not chunk else f"has over {MAX_LINE:,} characters or is not JSON"
                raise ValueError(f"{file}: object {number} {why}; give an array of objects, or one object on each line (.jsonl)")


class _Keys:
    """The keys of source and target: those of `columns`, or of the languages of `pair` in the first object."""

    def __init__(self, file: Path, columns: str, pair: str, lenient: bool):
        self._file, self._pair, self._lenient, self._keys = file, pair, lenient, column_names(columns)
        if pair and columns != DEFAULT:
            self._pair = ""
            if not lenient:
                require_agreement(self._keys, columns, pair, file)

    def of(self, value: object) -> list[str]:
        """The keys for an object, and for all that follow."""
        if self._pair and isinstance(value, dict):
            nested = (f"{key}.{inner}" for key, inside in value.items() if isinstance(inside, dict) for inner in inside)
            names = [*map(str, value), *islice(nested, MAX_KEYS)]
            if indexes := choose_languages(names, self._pair, self._file, self._lenient):
                self._keys = [names[index] for index in indexes]
            self._pair = ""
        return self._keys


def lookup(value: object, key: str) -> object:
    """The value of a key, of a nested key with dots, or of a number (from 1) in a list."""
    if isinstance(value, dict) and key in value:
        return value[key]
    for part in key.split("."):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and 0 < int(part) <= len(value):
            value = value[int(part) - 1]
        else:
            return None
    return value


def _row(value: object, keys: list[str], number: int) -> Row | BadRow:
    cells = [lookup(value, key) for key in keys]
    cells[1:] = [str(cell) if isinstance(cell, int) else cell for cell in cells[1:]]  # a class may be a number
    texts = tuple(cell for cell in cells if isinstance(cell, str))
    if len(texts) < len(keys):
        has = ", ".join(map(str, value))[:200] if isinstance(value, dict) else type(value).__name__
        wanted = " and ".join(map(repr, keys))
        return BadRow(number, f"needs text under {wanted}, it has {has}", f"name its keys in data.columns{_suggest(value)}")
    if any("\ud800" <= character <= "\udfff" for text in texts if not text.isascii() for character in text):
        return BadRow(number, "holds half a character (a surrogate such as \\ud800)", "fix the JSON")
    return texts


def _suggest(value: object) -> str:
    """The first object inside another that has two texts, as columns to choose."""
    for key, inside in value.items() if isinstance(value, dict) else ():
        texts = (
            [name for name, text in islice(inside.items(), MAX_KEYS) if isinstance(text, str)] if isinstance(inside, dict) else []
        )
        if len(texts) > 1:
            return f", such as data.columns={key[:40]}.{texts[0][:40]},{key[:40]}.{texts[1][:40]}"
    return ""
