"""Assertions about the command line that several test files share."""

from pathlib import Path


def assert_refused(result, *words: object) -> None:
    """A mistake is exit code 2, one line on standard error with these words, nothing on standard output."""
    assert result.code == 2, result
    assert result.out == ""
    lines = [line for line in result.err.splitlines() if line.startswith("regard: ")]
    assert len(lines) == 1, result.err
    assert "Traceback" not in result.err
    for word in words:
        assert str(word) in lines[0], f"{word!r} not in {lines[0]!r}"


def write(file: Path, content: bytes | str) -> Path:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file
