"""The page keeps the weights that it used last, within a bound, and asks again for the others."""

import json
import subprocess
from pathlib import Path

from page_node import require_node

import regard

PAGE = Path(regard.__file__).parent / "web" / "page"
SERVER = """
const zeros = btoa("\\0".repeat(2 * 256 * 256));  // a tile: 65,536 weights of 16 bits, which are 256 KiB in the page
const asked = [];
let broken = false;
const app = {
  record: { id: "r1", axes: { tokens: { size: 512 } } },
  get: async (path) => {
    asked.push(path);
    if (broken) throw new Error("no answer");
    return { weights: zeros };
  },
};
const layer = (index) => ({ index, queries: "tokens", keys: "tokens" });
const count = async (work) => {
  const before = asked.length;
  await work();
  return asked.length - before;
};
"""


def evaluate(code: str) -> object:
    """What a script says that has weights.js and lru_cache.js, and a server that answers with zeros."""
    imports = "".join(f'import * as {name} from "{(PAGE / file).as_uri()}";\n'
                      for name, file in (("weights", "weights.js"), ("lru", "parts/lru_cache.js")))  # fmt: skip
    done = subprocess.run([require_node(), "--input-type=module", "-e", imports + SERVER + code], capture_output=True, text=True,
                          timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_matrix_is_asked_for_once_and_again_when_64_mib_of_others_were_used():
    found = evaluate("""
    const load = (index, head) => weights.loadMatrix(app, layer(index), head);
    const first = await count(() => load(0, 0));
    const kept = await count(() => load(0, 0));
    for (let head = 1; head < 64; head += 1) await load(0, head);  // 64 MiB in all
    const full = await count(() => load(0, 0));
    await load(0, 64);
    const used = await count(() => load(0, 0));
    const evicted = await count(() => load(0, 1));
    console.log(JSON.stringify({ first, kept, full, used, evicted }));
    """)
    assert found == {"first": 4, "kept": 0, "full": 0, "used": 0, "evicted": 4}


def test_weights_of_another_record_are_not_kept():
    found = evaluate("""
    await weights.loadMatrix(app, layer(0), 0);
    app.record = { ...app.record, id: "r2" };
    const other = await count(() => weights.loadMatrix(app, layer(0), 0));
    console.log(JSON.stringify({ other, last: asked.at(-1) }));
    """)
    assert found["other"] == 4
    assert found["last"].startswith("/records/r2/")


def test_an_error_is_not_kept():
    found = evaluate("""
    broken = true;
    const error = await weights.loadMatrix(app, layer(0), 0).catch((error) => error.message);
    broken = false;
    console.log(JSON.stringify({ error, then: await count(() => weights.loadMatrix(app, layer(0), 0)) }));
    """)
    assert found == {"error": "no answer", "then": 4}


def test_what_is_awaited_is_asked_for_once_and_what_is_cleared_meanwhile_does_not_count():
    found = evaluate("""
    const cache = lru.lruCache(8);
    const calls = [];
    const waiting = [];
    const ask = (key) => cache.get(key, () => {
      calls.push(key);
      return new Promise((answer) => waiting.push(() => answer(new Uint8Array(6))));
    });
    const [one, same, two] = [ask("one"), ask("one"), ask("two")];
    cache.clear();
    const again = ask("one");
    waiting.forEach((answer) => answer());
    await Promise.all([one, same, two, again]);
    ask("one");  // kept: the arrays from before the clearing take no room
    console.log(JSON.stringify(calls));
    """)
    assert found == ["one", "two", "one"]
