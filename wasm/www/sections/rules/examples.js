// Rules files to start from. Each is one idea, and is tried on the sample log as it stands.

const file = (document) => `${print(document, "")}\n`;

/** JSON as the manual writes it: what fits stands on one line. */
function print(value, indent) {
  const flat = JSON.stringify(value)
    .replace(/("(?:[^"\\]|\\.)*")|([{[])(?=[^}\]])|([}\]])|([:,])/g, (match, text, open, close, mark) =>
      text ?? (open ? `${open} ` : close ? ` ${close}` : `${mark} `))
    .replace(/\[ ("(?:[^"\\]|\\.)*"(?:, "(?:[^"\\]|\\.)*")*) \]/g, "[$1]");
  if (typeof value !== "object" || value === null || indent.length + flat.length <= 88) {
    return flat;
  }
  const inner = `${indent}  `;
  const rows = Array.isArray(value)
    ? value.map((item) => `${inner}${print(item, inner)}`)
    : Object.entries(value).map(([name, item]) => `${inner}${JSON.stringify(name)}: ${print(item, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return `${open}\n${rows.join(",\n")}\n${indent}${close}`;
}

const net = { name: "net", key: ["ip"], limits: [{ rate: "5/s", burst: 40 }] };
const login = { name: "login", match: { path: "/login", method: "POST" }, key: ["ip"], limits: [{ rate: "5/m" }] };

export const EXAMPLES = [
  {
    id: "night",
    title: "Last night: one limit an address, and a stricter one for /login",
    text: file({ policies: [net, login] }),
  },
  {
    id: "search",
    title: "One path: only the search is limited",
    text: file({
      policies: [{ name: "search", match: { path: "/api/search" }, key: ["ip"], limits: [{ rate: "2/s", burst: 20 }] }],
    }),
  },
  {
    id: "dry",
    title: "Dry run: count what would be denied, deny nothing",
    text: file({ policies: [{ ...net, dry_run: true }, { ...login, dry_run: true }] }),
  },
  {
    id: "penalty",
    title: "Passwords: each denial makes the next wait longer",
    text: file({
      policies: [{ ...login, penalty: { base: "1s", factor: 2, max: "15m" } }],
    }),
  },
  {
    id: "keys",
    title: "API keys: a key is required, and one customer has more",
    text: file({
      identity: { api_key: { header: "x-api-key", required: true } },
      policies: [
        {
          name: "orders",
          match: { path: "/api/orders/*", method: "POST" },
          key: ["api_key"],
          limits: [{ rate: "100/s", burst: 200 }, { algorithm: "sliding_window", rate: "100000/d" }],
          overrides: [{ key: ["shop-a"], limits: [{ rate: "500/s" }] }],
        },
        { name: "by-address", key: ["ip"], limits: [{ rate: "50/s", burst: 500 }] },
      ],
    }),
  },
  {
    id: "proxies",
    title: "Behind proxies: whom to believe, and today's header fields",
    text: file({
      identity: {
        ip: { trusted_proxies: ["10.0.0.0/8"], header: "x-forwarded-for", ipv6_prefix: 64 },
      },
      policies: [
        {
          name: "writes",
          match: { method: ["POST", "PUT", "DELETE"] },
          key: ["ip"],
          limits: [{ algorithm: "leaky_bucket", rate: "30/m", burst: 10 }],
        },
      ],
      default: { key: ["ip"], limits: [{ rate: "20/s", burst: 100 }] },
      headers: "ratelimit",
    }),
  },
];

/** Requests that show what an example does, for the tester. */
export const REQUESTS = {
  night: { method: "POST", host: "shop.example", path: "/login", peer: "198.51.100.23", headers: "" },
  search: { method: "GET", host: "shop.example", path: "/api/search", peer: "203.0.113.66", headers: "" },
  dry: { method: "POST", host: "shop.example", path: "/login", peer: "198.51.100.23", headers: "" },
  penalty: { method: "POST", host: "shop.example", path: "/login", peer: "198.51.100.23", headers: "" },
  keys: {
    method: "POST", host: "shop.example", path: "/api/orders/7", peer: "203.0.113.7", headers: "X-Api-Key: shop-a",
  },
  proxies: {
    method: "POST", host: "shop.example", path: "/cart", peer: "10.0.0.2",
    headers: "X-Forwarded-For: 1.2.3.4, 203.0.113.7",
  },
};
