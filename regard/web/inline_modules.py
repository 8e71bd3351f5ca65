"""ES modules → one classic script, for a page that opens from disk: browsers load no modules from `file://`.

Each module becomes a function that is called once, after those it imports, and returns what it exports.  That is right only for
modules written in a plain way, so everything else is refused: default exports, exported variables that change, renamed or star
imports, imports at run time, top-level await and cycles.
"""

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["inline_modules"]

IMPORT = re.compile(r'import\s*\{([\w\s,]*)\}\s*from\s*"(\.{1,2}/[\w./-]+\.js)";?')
DECLARATION = re.compile(r"(export )?(?:(?:async )?function\*? ?|const |let |class )(\w+)\b")
TOP_LEVEL = re.compile(r"(?:export|import|const|let|var|class|function|async|await|for await)\b")
AT_RUN_TIME = re.compile(r"\bimport\s*\(|\bimport\.meta\b|\brequire\s*\(|\beval\s*\(|\bnew Function\b")
AWAITED = re.compile(r"(export )?(const|let) \w+ = await\b")
INLINE_COMMENT = re.compile(r"/\*.*?\*/")


@dataclass
class _Module:
    """One file: its code without imports and exports, what it declares, and what it imports from where."""

    code: list[str]
    declared: dict[str, bool]  # top-level names, whether each is exported
    imports: dict[str, list[str]]  # file → names


def inline_modules(start: str, read: Callable[[str], str]) -> str:
    """The script of a module and of all it imports, by file name; `read` gives the text of a file."""
    modules: dict[str, _Module] = {}
    _collect(start, read, modules, ())
    numbers = {name: f"module{number}" for number, name in enumerate(modules)}
    parts = list[str]()
    for name, module in modules.items():
        for file, names in module.imports.items():
            if missing := [wanted for wanted in names if not modules[file].declared.get(wanted)]:
                raise ValueError(f"{name} imports {missing[0]}, which {file} does not export")
            if clash := [wanted for wanted in names if wanted in module.declared]:
                raise ValueError(f"{name} imports {clash[0]} and declares it too")
        imports = [f"const {{ {', '.join(names)} }} = {numbers[file]};" for file, names in module.imports.items()]
        exports = ", ".join(declared for declared, exported in module.declared.items() if exported)
        code = "\n".join((*imports, *module.code, f"return {{ {exports} }};"))
        parts.append(f"const {numbers[name]} = (() => {{ // {name}\n{code}\n}})();")
    code = "\n".join(parts)
    if found := re.search(r"</script|<!--", code, re.IGNORECASE):
        raise ValueError(f"the page's code has {found[0]!r}, which would end or hide an inline script; write it in two parts")
    return f'(() => {{\n"use strict";\n{code}\n}})();\n'


def _collect(file: str, read: Callable[[str], str], modules: dict[str, _Module], above: tuple[str, ...]) -> None:
    """Parse a file after those it imports."""
    if file in above:
        raise ValueError(f"{' imports '.join((*above[above.index(file) :], file))}; break the cycle")
    if file in modules:
        return
    module = _parse(file, read(file))
    for other in module.imports:
        _collect(other, read, modules, (*above, file))
    modules[file] = module


def _parse(file: str, text: str) -> _Module:
    module, lines, in_comment = _Module([], {}, {}), iter(enumerate(text.split("\n"), 1)), False
    for number, line in lines:
        where = f"{file} line {number}"

        # 1) Comments stay as they are; the types in them may say import(...).
        if in_comment or line.lstrip().startswith("/*"):
            in_comment = "*/" not in line
            if not in_comment and line.partition("*/")[2].strip():
                _check(where, line)
            module.code.append(line)

        # 2) Imports may take several lines.
        elif line.startswith("import"):
            statement = line
            while "from" not in statement and ";" not in statement:
                statement += "\n" + next(lines, (0, ";"))[1]
            found = IMPORT.fullmatch(statement.strip())
            if not found:
                raise ValueError(f'{where}: {statement.strip()!r}; only import {{ names }} from "./file.js" is known')
            names = [name.strip() for name in found[1].split(",") if name.strip()]
            other = posixpath.normpath(posixpath.join(posixpath.dirname(file), found[2]))
            if not all(name.isidentifier() for name in names):
                raise ValueError(f"{where} renames an import; use the name that {other} exports")
            module.imports.setdefault(other, []).extend(names)

        # 3) Declarations lose their export.
        else:
            _check(where, line)
            if TOP_LEVEL.match(line):
                found = DECLARATION.match(line)
                if not found or AWAITED.match(line) or line.startswith("export let"):
                    raise ValueError(f"{where}: {line.strip()!r}; at the top level only functions, classes, const and let of one "
                                     f"name are known")  # fmt: skip
                if found[2] in module.declared:
                    raise ValueError(f"{where} declares {found[2]} again")
                module.declared[found[2]] = bool(found[1])
            module.code.append(line.removeprefix("export "))
    return module


def _check(where: str, line: str) -> None:
    if found := AT_RUN_TIME.search(INLINE_COMMENT.sub("", line.split(" // ")[0])):
        raise ValueError(f"{where}: {found[0]!r}; a page in one file has nothing to import at run time")
