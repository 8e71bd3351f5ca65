/** A cache of arrays that were asked for, bounded in bytes: the least recently used leave first. */

/**
 * @template {{byteLength: number}} Value
 * @param {number} limit  bytes; an array larger than this is passed on and not kept
 */
export function lruCache(limit) {
  /** @type {Map<string, {answer: Promise<Value>, bytes: number}>} */
  const entries = new Map(); // in the order of insertion: the least recently used first
  let total = 0;

  /** @param {string} key */
  function remove(key) {
    total -= entries.get(key)?.bytes ?? 0;
    entries.delete(key);
  }

  function evict() {
    for (const [key, { bytes }] of entries) {
      if (total <= limit) return;
      if (bytes) remove(key); // those that are still awaited have 0 bytes and stay, so that nothing is asked for twice
    }
  }

  /**
   * @param {string} key
   * @param {() => Promise<Value>} ask
   */
  function add(key, ask) {
    const entry = { answer: ask(), bytes: 0 };
    const isKept = () => entries.get(key) === entry; // the cache may have been cleared while the answer was awaited
    entry.answer.then(
      ({ byteLength }) => {
        if (!isKept()) return;
        entry.bytes = byteLength;
        total += byteLength;
        evict();
      },
      () => isKept() && remove(key), // an error is not kept: the next try may work
    );
    return entry;
  }

  return {
    /**
     * The array that is kept under a key, else the one that `ask` promises.
     * @param {string} key
     * @param {() => Promise<Value>} ask
     */
    get(key, ask) {
      const entry = entries.get(key) ?? add(key, ask);
      entries.delete(key);
      entries.set(key, entry); // now the most recently used
      return entry.answer;
    },
    clear() {
      entries.clear();
      total = 0;
    },
  };
}
