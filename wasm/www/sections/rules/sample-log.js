// "Last night": a made-up access log in NGINX's combined format, the same bytes on every machine.
//
// Six hours of a small shop: its customers, more of them towards morning; a job of twelve machines
// that all start on the hour; one client that harvests the search for half an hour; and somebody who
// tries passwords. Addresses are from the ranges that are reserved for documentation, but for the
// private ones of the job's machines.

/** Midnight of 2026-11-01, UTC, in seconds since 1970. */
const START = 1_793_491_200;
const HOURS = 6;
const SECONDS = HOURS * 3600;

const PAGES = [
  "/", "/", "/shop/shoes", "/shop/shoes?page=2", "/shop/hats", "/api/cart", "/api/cart", "/api/items/81",
  "/api/items/412", "/api/search?q=boots", "/static/app.js", "/static/app.css", "/login", "/account",
];
const AGENTS = [
  "Mozilla/5.0 (X11; Linux x86_64; rv:132.0) Gecko/20100101 Firefox/132.0",
  "Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) AppleWebKit/605.1.15 Version/18.1 Mobile Safari/604.1",
  "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/131.0 Safari/537.36",
];

/** The client that harvests, and the one that guesses passwords: the lab tells of them by name. */
export const HARVESTER = "203.0.113.66";
export const GUESSER = "198.51.100.23";

/** What was behind it, for who has looked for himself. */
export const STORY = [
  `${HARVESTER} took the search’s pages one after the other, twenty a second, from 02:10 to 02:40. It got its 5 a second, and its burst of 40 once: 9,035 of 36,000.`,
  `${GUESSER} tried two passwords a second from 03:30 to 04:10. The limit for /login let five a minute through: of 4,800 attempts, 204.`,
  "10.0.0.10 to 10.0.0.21 are the machines of an export that all start on the hour. They do what they are told, and yet are denied: for five seconds each asks 30 times a second. A limit of their own would let them be, by an override or a policy for /api/export/*; so would a start that is spread over a minute.",
  "Customers (192.0.2.…) were never denied: what each asks is far below the limit of an address.",
];

/**
 * The log's text.
 * @param {number} lines how many lines; customers fill up what the others leave
 * @returns {string}
 */
export function sampleLog(lines = 100_000) {
  const random = xorshift(20_261_101);
  const entries = [];
  const scale = lines / 100_000;
  const add = (second, peer, method, path, status, agent) =>
    entries.push({ second, line: `${peer} - - [${stamp(second)}] "${method} ${path} HTTP/1.1" ${status} ${200 + Math.floor(random() * 20000)} "-" "${agent}"` });

  // 02:10 to 02:40: the search, some twenty pages a second.
  for (let i = 0; i < 36_000 * scale; i++) {
    add(7800 + Math.floor((i / (36_000 * scale)) * 1800), HARVESTER, "GET", `/api/search?q=a&page=${i}`, 200, "python-requests/2.32");
  }
  // 03:30 to 04:10: two passwords a second.
  for (let i = 0; i < 4_800 * scale; i++) {
    add(12_600 + Math.floor((i / (4_800 * scale)) * 2400), GUESSER, "POST", "/login", 401, "curl/8.5.0");
  }
  // On the hour: twelve machines, each as fast as it can for five seconds.
  for (let hour = 1; hour < HOURS; hour++) {
    for (let i = 0; i < 1_800 * scale; i++) {
      add(hour * 3600 + Math.floor(random() * 5), `10.0.0.${10 + (i % 12)}`, "GET", `/api/export/${i}`, 200, "nightly-export/1.0");
    }
  }
  // Customers, twice as many at six as at midnight.
  while (entries.length < lines) {
    const second = Math.floor(SECONDS * (Math.sqrt(1 + 3 * random()) - 1));
    const who = Math.floor(random() * random() * 250);
    const path = PAGES[Math.floor(random() * PAGES.length)];
    add(second, `192.0.2.${who}`, path === "/login" ? "POST" : "GET", path, 200, AGENTS[who % AGENTS.length]);
  }
  entries.sort((a, b) => a.second - b.second);
  return entries.slice(0, lines).map((entry) => entry.line).join("\n") + "\n";
}

/** As NGINX writes `$time_local`. */
function stamp(second) {
  const [time] = new Date((START + second) * 1000).toISOString().slice(11).split(".");
  return `01/Nov/2026:${time} +0000`;
}

/** Xorshift (Marsaglia, 2003): from 0 to below 1. `state` is not 0. */
function xorshift(state) {
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 4_294_967_296;
  };
}
