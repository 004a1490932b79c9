// The place in the lab and its state, as the address has them: "#bucket?limit=5&period=1".
// Behind the #, so that any server can serve the page from any folder.

/** Browsers refuse an address that changes too often. */
const PAUSE = 250;

/** @returns {{ id: string, state: Record<string, string> }} */
export function read(hash = location.hash) {
  const [id, query = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  return { id, state: Object.freeze(Object.fromEntries(new URLSearchParams(query))) };
}

/** @param {Record<string, unknown>} state empty fields are left out */
export function write(id, state = {}) {
  const fields = Object.entries(state).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const query = new URLSearchParams(fields.map(([name, value]) => [name, String(value)])).toString();
  return `#${id}${query && `?${query}`}`;
}

/**
 * Makes a function that puts a hash in the address, without a step in the history.
 *
 * @param {() => string | undefined} here the hash that is shown: when the address has another by now, somebody
 *   has gone on, and is not called back.
 * @param {(hash: string) => void} onReplaced
 */
export function throttledReplace(here, onReplaced) {
  let wanted = null;
  let timer = 0;
  const put = () => {
    clearTimeout(timer);
    timer = 0;
    if (wanted !== null && wanted !== location.hash && location.hash === here()) {
      history.replaceState(null, "", wanted);
      onReplaced(location.hash);
    }
    wanted = null;
  };
  return {
    replace(hash) {
      wanted = hash;
      timer ||= setTimeout(put, PAUSE);
    },
    /** What waits is put at once. */
    flush: put,
    forget() {
      wanted = null;
    },
  };
}
