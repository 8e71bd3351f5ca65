"""Word files: paragraphs, tables, headers, footers and notes; a run keeps its formatting around its words.

A paragraph is translated as one text.  Runs of one formatting are joined; those that differ from the longest of them, links and
pictures become tags inside the text (see inline.py).  Read by python-docx, whose parser expands no entities.
"""

import copy
import io
import zipfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.data.documents.document import MAX_BYTES, Document
from regard.data.documents.inline import Mark, from_tags, to_tags
from regard.data.xml_parts import declares_entities

if TYPE_CHECKING:
    from lxml.etree import _Element as Element  # type: ignore[import-untyped]

__all__ = ["read_docx"]

MAX_FILES = 10_000
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_TEXT = frozenset(f"{_W}{name}" for name in ("rPr", "t", "br", "cr", "tab", "noBreakHyphen", "lastRenderedPageBreak"))
_DROPPED = frozenset(f"{_W}{name}" for name in ("proofErr",))
# Around runs: links, tracked insertions and moves, content controls, recognised names, fields such as a cross-reference.
_CONTAINERS = frozenset(f"{_W}{name}" for name in ("hyperlink", "ins", "moveTo", "sdt", "smartTag", "customXml", "fldSimple"))
_UNWRAPPED = frozenset(f"{_W}{name}" for name in ("ins", "moveTo", "smartTag"))  # if they hold more than text


class _Piece(NamedTuple):
    """A run of text with its formatting; or an element that stays as it is, such as a picture."""

    element: "Element"
    text: str
    formatting: bytes
    is_text: bool


def read_docx(content: bytes) -> Document:
    """The text of each paragraph."""
    try:
        import docx
    except ImportError:
        raise ValueError("needs a package: pip install python-docx") from None
    _check_archive(content)
    try:
        opened = docx.Document(io.BytesIO(content))
        roots = [part.element for part in opened.part.package.iter_parts() if hasattr(part, "element")]
    except Exception as error:  # the library has no error of its own for a damaged file
        raise ValueError(f"is not a readable Word file ({type(error).__name__}); save it again as .docx") from None
    writers, texts = list[Callable[[str], None]](), list[str]()
    for root in roots:
        for paragraph in list(root.iter(f"{_W}p")):
            _add_paragraph(paragraph, writers, texts)

    def render(answers: list[str]) -> bytes:
        for write, answer in zip(writers, answers, strict=True):
            write(answer)
        stream = io.BytesIO()
        opened.save(stream)
        return stream.getvalue()

    return Document(texts, render)


def _check_archive(content: bytes) -> None:
    """Refuse what is no zip file, grows without bounds when unpacked, or declares entities."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            size = sum(entry.file_size for entry in entries)
            if len(entries) > MAX_FILES or size > 4 * MAX_BYTES:
                raise ValueError(f"has {len(entries):,} files of {size:,} bytes unpacked; wanted at most {4 * MAX_BYTES:,}")
            for entry in entries:
                if entry.filename.lower().endswith((".xml", ".rels")):
                    with archive.open(entry) as part:
                        if declares_entities(part):
                            raise ValueError(f"declares a document type in {entry.filename}; save it again as .docx")
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(f"is not a Word file ({error}); save it as .docx") from None


def _add_paragraph(paragraph: "Element", writers: list[Callable[[str], None]], texts: list[str]) -> None:
    pieces = _pieces(paragraph)
    spoken = [number for number, piece in enumerate(pieces) if piece.is_text and piece.text.strip()]
    if not any(character.isalpha() for piece in pieces if piece.is_text for character in piece.text):
        return
    lengths = dict[bytes, int]()
    for piece in pieces:
        if piece.is_text:
            lengths[piece.formatting] = lengths.get(piece.formatting, 0) + len(piece.text)
    usual = max(lengths, key=lengths.__getitem__)
    inside = pieces[spoken[0] : spoken[-1] + 1]

    marked, owners = list[str | Mark](), list[_Piece]()  # the piece that each mark stands for
    for piece in inside:
        if not piece.is_text:
            marked.append(Mark("empty"))
            owners.append(piece)
        elif piece.formatting == usual:
            marked.append(piece.text)
        else:
            marked += [Mark("open", "run"), piece.text, Mark("close", "run")]
            owners += [piece, piece]
    text, tags = to_tags(marked)
    template = next(piece for piece in pieces if piece.is_text and piece.formatting == usual)
    start = len(text) - len(text.lstrip())
    before, after = text[:start], text[len(text.rstrip()) :]

    def write(answer: str) -> None:
        place = paragraph.makeelement(f"{_W}proofErr")  # stands where the first piece was, which may itself be moved
        inside[0].element.addprevious(place)
        current, made = template, list["Element"]()
        for part in from_tags(before + answer + after, tags):
            if isinstance(part, str):
                made.append(_with_text(current, part))
            elif not owners[part].is_text:
                made.append(owners[part].element)  # moved, not copied: a text box inside it is written later
            else:
                current = owners[part] if not tags[part].startswith("</") else template
        for piece in inside:
            piece.element.getparent().remove(piece.element)
        for element in made:
            place.addprevious(element)
        place.getparent().remove(place)

    writers.append(write)
    texts.append(text.strip())


def _pieces(paragraph: "Element") -> list[_Piece]:
    """The runs of a paragraph, those that follow each other with one formatting joined."""
    pieces = list[_Piece]()
    _unwrap(paragraph)
    for child in list(paragraph):
        if child.tag == f"{_W}r" and all(part.tag in _TEXT for part in child):
            piece = _Piece(child, _text_of(child), _formatting(child), True)
            if pieces and pieces[-1].is_text and pieces[-1].formatting == piece.formatting:
                pieces[-1].element.extend(part for part in list(child) if part.tag != f"{_W}rPr")
                paragraph.remove(child)
                pieces[-1] = pieces[-1]._replace(text=pieces[-1].text + piece.text)
            else:
                pieces.append(piece)
        elif child.tag in _CONTAINERS and (text := _text_inside(child)):
            pieces.append(_Piece(child, text, b"container" + str(len(pieces)).encode(), True))
        elif child.tag in _DROPPED:  # where a spelling mistake was
            paragraph.remove(child)
        elif child.tag != f"{_W}pPr":
            pieces.append(_Piece(child, "", b"", False))
    return pieces


def _unwrap(paragraph: "Element") -> None:
    """Replace insertions that hold more than text, such as a picture, by their content, as if the change were accepted."""
    for child in list(paragraph):
        if child.tag in _UNWRAPPED and not _text_inside(child):
            _unwrap(child)
            for part in list(child):
                child.addprevious(part)
            paragraph.remove(child)


def _text_inside(container: "Element") -> str:
    """The text of a container's runs, if they hold nothing else; of a field only if it has letters: others are page numbers."""
    content = container.find(f"{_W}sdtContent") if container.tag == f"{_W}sdt" else container
    texts = list[str]()
    for part in content if content is not None else ():
        if part.tag == f"{_W}r" and all(inner.tag in _TEXT for inner in part):
            texts.append(_text_of(part))
        elif part.tag in _CONTAINERS and (text := _text_inside(part)):
            texts.append(text)
        elif not str(part.tag).endswith("Pr") and part.tag not in _DROPPED:
            return ""
    text = "".join(texts)
    return text if container.tag != f"{_W}fldSimple" or any(map(str.isalpha, text)) else ""


def _text_of(run: "Element") -> str:
    names: dict[str, str] = {"br": "\n", "cr": "\n", "tab": "\t", "noBreakHyphen": "-"}
    return "".join((part.text or "") if part.tag == f"{_W}t" else names.get(str(part.tag).removeprefix(_W), "") for part in run)


def _formatting(run: "Element") -> bytes:
    from lxml.etree import tostring

    properties = run.find(f"{_W}rPr")
    if properties is None:
        return b""
    plain = copy.deepcopy(properties)
    for name in ("lang", "noProof"):  # of no effect on what is bold or red
        for found in plain.findall(f"{_W}{name}"):
            plain.remove(found)
    return bytes(tostring(plain, method="c14n")) if len(plain) else b""


def _with_text(piece: _Piece, text: str) -> "Element":
    """A copy of a run, or of a link or another container with one run, that has this text."""
    element: Any = copy.deepcopy(piece.element)
    run = element
    if element.tag in _CONTAINERS:
        run, *others = element.iter(f"{_W}r")
        for other in others:
            other.getparent().remove(other)
    for part in list(run):
        if part.tag != f"{_W}rPr":
            run.remove(part)
    for number, line in enumerate(text.split("\n")):
        if number:
            run.append(run.makeelement(f"{_W}br"))
        for index, word in enumerate(line.split("\t")):
            if index:
                run.append(run.makeelement(f"{_W}tab"))
            node = run.makeelement(f"{_W}t")
            node.text = word
            node.set("{http://www.w3.org/XML/1998/namespace}space", "preserve")
            run.append(node)
    return element
