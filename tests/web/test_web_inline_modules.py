"""ES modules in one script: what is transformed, and what is refused."""

import re

import pytest

from regard.web.inline_modules import inline_modules

APP = """/** The page. */

import { double, LIMIT } from "./parts/numbers.js";
import {
  show,
} from "./show.js";

/** @type {import("./types.js").App} */
const app = { value: double(LIMIT) };

async function* lines() {}

export class Page extends Object {}

show(app);
"""
NUMBERS = """export const LIMIT = 3;
export function double(x) {
  return 2 * x; // import("nothing")
}
"""
SHOW = """import { LIMIT } from "./parts/numbers.js";
export const show = (app) => (globalThis.shown = /** @type {import("./a.js").B} */ (app.value + LIMIT));
"""


def inline(**files: str) -> str:
    pages = {"app.js": APP, "parts/numbers.js": NUMBERS, "show.js": SHOW, **{f"{name}.js": text for name, text in files.items()}}
    return inline_modules("app.js", pages.__getitem__)


def test_modules_come_after_those_they_import_without_import_and_export():
    script = inline()
    code = re.sub(r"/\*.*?\*/|// [^\n]*", "", script, flags=re.S)
    assert not re.search(r"\b(import|export)\b", code)
    places = [code.index(text) for text in ("const LIMIT", "const show", "const app", "class Page", "show(app);")]
    assert places == sorted(places)
    assert code.count("const LIMIT = 3") == 1  # though two modules import it
    assert code.strip().startswith("(() => {")
    assert code.strip().endswith("})();")


def test_the_script_does_what_the_modules_do(new_page):
    page = new_page()
    page.add_script_tag(content=inline())
    assert page.evaluate("shown") == 9
    assert page.evaluate("typeof LIMIT") == "undefined"  # nothing else is left behind


def test_two_modules_may_use_one_name(new_page):
    page = new_page()
    page.add_script_tag(
        content=inline(show="const app = 1;\nexport const show = (found) => (globalThis.shown = found.value + app);")
    )
    assert page.evaluate("shown") == 7


def test_files_in_folders_import_relative_to_themselves():
    files = {
        "app.js": 'import { a } from "./parts/a.js";\na();',
        "parts/a.js": 'import { b } from "../b.js";\nexport const a = b;',
        "b.js": "export function b() {}",
    }
    script = inline_modules("app.js", files.__getitem__)
    assert script.index("function b") < script.index("const a = b") < script.index("a();")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("export default function () {}", "at the top level only functions"),
        ("export { show };", "at the top level only functions"),
        ('export * from "./show.js";', "at the top level only functions"),
        ("export const { a, b } = app;", "at the top level only functions"),
        ("const value = await load();", "at the top level only functions"),
        ("await load();", "at the top level only functions"),
        ("var old = 1;", "at the top level only functions"),
        ('import everything from "./show.js";', "only import { names }"),
        ('import * as all from "./show.js";', "only import { names }"),
        ('import "./show.js";', "only import { names }"),
        ('import { show } from "https://example.com/show.js";', "only import { names }"),
        ('import { show as other } from "./show.js";', "renames an import"),
        ('import { hidden } from "./show.js";', "imports hidden, which show.js does not export"),
        ('import { LIMIT } from "./parts/numbers.js";\nconst LIMIT = 3;', "imports LIMIT and declares it too"),
        ("export let count = 0;", "at the top level only functions"),
        ('function later() {\n  return import("./show.js");\n}', r"'import\('"),
        ("const here = import.meta;", "'import.meta'"),
        ("function run(text) {\n  eval(text);\n}", r"'eval\('"),
        ("const twice = 1;\nfunction twice() {}", "declares twice again"),
        ("const tag = '</script>';", "would end or hide an inline script"),
        ("const tag = '<!--';", "would end or hide an inline script"),
    ],
)
def test_what_would_change_its_meaning_is_refused(code: str, error: str):
    with pytest.raises(ValueError, match=error):
        inline(app=code)


def test_modules_that_import_each_other_are_refused():
    with pytest.raises(ValueError, match=r"show.js imports app.js"):
        inline(show='import { app } from "./app.js";\nexport const show = app;')
