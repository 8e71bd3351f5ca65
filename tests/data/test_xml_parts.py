"""XML inside zip files is refused if it declares entities, wherever and in whichever encoding."""

import io

import pytest

from regard.data.xml_parts import CHUNK, declares_entities

BOMB = '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'


@pytest.mark.parametrize("content", [
    BOMB.encode(), b"\xef\xbb\xbf" + BOMB.encode(), BOMB.lower().encode(), BOMB.encode("utf-16"), BOMB.encode("utf-16-le"),
    BOMB.encode("utf-16-be"), BOMB.encode("cp037"), BOMB.encode("utf-32"),
    b'<?xml version="1.0" encoding="UTF-7"?>' + BOMB.replace("<", "+ADw-").encode(),
    *(b"<!--" + b"x" * (size - 7) + b"-->" + BOMB.encode() for size in range(CHUNK - 10, CHUNK + 2)),
    b"<!--" + b"x" * (5 << 20) + b"-->" + BOMB.encode(),
])  # fmt: skip
def test_a_declaration_is_found_in_any_encoding_and_behind_any_comment(content):
    assert declares_entities(io.BytesIO(content))


@pytest.mark.parametrize("content", [
    b"", b"<a/>", b'\xef\xbb\xbf<?xml version="1.0" encoding="UTF-8"?>\n<a>&lt;!DOCTYPE</a>', "<a>grün</a>".encode("utf-16"),
    b'<?xml version="1.0" encoding="ISO-8859-1"?><a>\xfc</a>', b"<a>" + "ü".encode() * CHUNK + b"</a>",
])  # fmt: skip
def test_other_files_declare_nothing(content):
    assert not declares_entities(io.BytesIO(content))
