"""The reference, as Markdown: public names from their docstrings, verbs from their options, config keys from their comments."""

import ast
import enum
import importlib
import inspect
import re
import textwrap
from pathlib import Path

__all__ = ["keys", "public_name", "verb"]

WIDTH = 100  # characters of a signature in one line


def public_name(name: str, *methods: str) -> str:
    """Heading, signature and docstring of `regard.NAME`, and of these methods, by default of all; "-" is none."""
    module, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(module), last)
    parts = [f"### {last}", _code(_signature(last, value)), _text(inspect.getdoc(value) or "")]
    if inspect.isclass(value):
        for method, member in vars(value).items():
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            function = function.fget if isinstance(function, property) else function
            wanted = method in methods if methods else not method.startswith("_")
            if wanted and inspect.isfunction(function) and inspect.getdoc(function):
                parts += [_code(_signature(f"{last}.{method}", function)), _text(inspect.getdoc(function) or "")]
    return "\n\n".join(parts)


def _signature(name: str, value: object) -> str:
    """`name(parameters) → result`, on one line or with a line for each parameter."""
    signature = inspect.signature(value)  # type: ignore[arg-type]
    own = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    result = "" if signature.return_annotation in (inspect.Signature.empty, None) else _type(signature.return_annotation)
    words, star = list[str](), False
    for p in own:
        if p.kind is p.KEYWORD_ONLY and not star:
            words.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        annotation = "" if p.annotation is p.empty else f": {_type(p.annotation)}"
        words.append(f"{prefix}{p.name}{annotation}" + ("" if p.default is p.empty else f" = {_default(p.default)}"))
    arrow = f" -> {result}" if result and not inspect.isclass(value) else ""
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){arrow}"


def _type(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text.replace("NoneType", "None"))


def _default(value: object) -> str:
    text = value.name if isinstance(value, enum.Enum) else repr(value)
    return "…" if text.startswith("<") or " at 0x" in text else text


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _text(docstring: str) -> str:
    """A docstring as Markdown: what is outside code and looks like HTML is text; drawings are code blocks."""
    blocks = []
    for block in re.split(r"\n\n(?=\S)", docstring):
        if block.startswith("    ") or "\n    " in block:
            head, _, drawing = block.partition("\n\n    ") if "\n\n    " in block else (block, "", "")
            blocks.append(_escape(" ".join(head.split())))
            if drawing:
                blocks.append("```text\n" + textwrap.dedent("    " + drawing) + "\n```")
        else:
            blocks.append(_escape(block))
    return "\n\n".join(blocks)


def _escape(text: str) -> str:
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_\[\]])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def verb(name: str) -> str:
    """Heading, docstring, and a table of the arguments and options of `regard NAME`."""
    import typer

    from regard.cli import app

    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    rows = []
    for p in command.params:
        if p.name == "help":
            continue
        spelled = " / ".join((*p.opts, *p.secondary_opts)) if p.param_type_name == "option" else p.metavar or p.name or ""
        default = getattr(p, "show_default", None) if isinstance(getattr(p, "show_default", None), str) else p.default
        value = "" if default in (None, False, (), []) or callable(default) or p.required else str(default)
        rows.append(f"| `{spelled}` | {_cell(getattr(p, 'help', '') or '')} | {_cell(value)} |")
    head = re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))
    text = "\n\n".join(_paragraph(block) for block in head)
    return f"### {name}\n\n{text}\n\n| | | default |\n|---|---|---|\n" + "\n".join(rows)


def _paragraph(block: str) -> str:
    block = block.replace("\b", "").strip()
    if re.match(r"(REGARD_\w+=\S+ )?regard ", block):
        return f"```text\n{' '.join(block.split())}\n```"
    return _escape(" ".join(block.split()))


def _cell(text: str) -> str:
    return _escape(" ".join(text.split())).replace("|", "\\|")


def keys(file: Path, name: str, table: str) -> str:
    """A table of the keys of a config class: their defaults, and what the comment beside each says."""
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    [node] = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name]
    rows = []
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name) or not field.end_lineno:
            continue
        if "ClassVar" in ast.unparse(field.annotation):
            continue
        comment = lines[field.end_lineno - 1][_column(field) :].strip().removeprefix("#").strip()
        value = ast.unparse(field.value) if field.value is not None else ""
        made = re.match(r"(?:dataclasses\.)?field\(default_factory=(?:lambda: )?(.*)\)$", value)
        value = {"list": "[]", "dict": "{}"}.get(made[1], made[1]) if made else value
        rows.append(f"| `{table}.{field.target.id}` | `{value}` | {_cell(_choices(field.annotation) + comment)} |")
    return "| key | default | |\n|---|---|---|\n" + "\n".join(rows)


def _choices(annotation: ast.expr) -> str:
    """What a `Literal` allows, before the comment."""
    text = ast.unparse(annotation)
    if not text.startswith("Literal["):
        return ""
    return ", ".join(f"`{value}`" for value in ast.literal_eval(f"[{text[8:-1]}]")) + "; "


def _column(field: ast.AnnAssign) -> int:
    """Where the code of the field's last line ends, in characters."""
    assert field.end_col_offset is not None
    return field.end_col_offset
