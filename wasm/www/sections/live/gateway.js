// Who serves this page, and what it answers. The built site has a lab.json that says nobody does; a
// gateway that serves the lab has its own in its place.

/**
 * @returns {Promise<{ gateway: string, api: string, rules: string, rulesText: string,
 *                     status?: string, metrics?: string } | null>}
 */
export async function findGateway() {
  try {
    const answer = await fetch("lab.json", { cache: "no-store" });
    const told = answer.ok ? await answer.json() : {};
    if (!told.gateway) {
      return null;
    }
    const rules = await fetch(told.rules, { cache: "no-store" });
    return rules.ok ? { ...told, rulesText: await rules.text() } : null;
  } catch {
    return null; // offline
  }
}

/** What of an answer tells of a limit. */
const FIELDS = [
  "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
  "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset", "RateLimit-Policy", "RateLimit", "Retry-After",
];

/** Milliseconds to which browsers blur their clocks. */
const GRAIN = 0.1;

performance.setResourceTimingBufferSize(1000); // a burst, and what the page itself loads
let number = 0;

/**
 * Sends one request, and tells when it went out and when the answer came, in milliseconds of
 * performance.now(). A browser keeps requests back when it has many: where it tells when this one went,
 * that counts.
 * @returns {Promise<Answer>}
 * @typedef {{ sent: number, answered: number, status: number, headers: [string, string][], body: string }} Answer
 */
export async function send(path, { headers = {}, signal } = {}) {
  number += 1;
  const url = new URL(`${path}?n=${number}`, location.href).href; // rules look at the path alone
  const sent = performance.now();
  const answer = await fetch(url, { headers, signal, cache: "no-store" });
  const answered = performance.now();
  const body = await answer.text();
  const [timed] = performance.getEntriesByName(url);
  const isTimed = timed !== undefined && timed.requestStart >= sent && timed.responseStart > 0;
  const told = FIELDS.map((name) => [name, answer.headers.get(name)]).filter(([, value]) => value !== null);
  return {
    sent: isTimed ? timed.requestStart - GRAIN : sent,
    answered: isTimed ? timed.responseStart + GRAIN : answered,
    status: answer.status, headers: told, body,
  };
}

/** What an answer's header field says, as a number; null without it. */
export function told(answer, name) {
  const found = answer.headers.find(([given]) => given.toLowerCase() === name);
  return found ? Number(found[1]) : null;
}

/**
 * Answers in the order in which the gateway must have decided. They may come in another: of those that
 * were under way together, who was admitted was first, and who was left more.
 */
export function inOrder(answers) {
  const left = (answer) => (answer.status === 200 ? (told(answer, "x-ratelimit-remaining") ?? 0) : -1);
  const ordered = [...answers].sort((a, b) => a.answered - b.answered);
  for (let end = ordered.length; end > 1; end--) {
    for (let i = 1; i < end; i++) {
      const [a, b] = [ordered[i - 1], ordered[i]];
      if (b.sent < a.answered && left(b) > left(a)) {
        [ordered[i - 1], ordered[i]] = [b, a];
      }
    }
  }
  return ordered;
}

/**
 * Of what came, what can be put in order: all that was answered before `oldest`, when the oldest request
 * that is still under way began, and before any was sent that cannot be put in order yet.
 * @param {{ answer: Answer }[]} came
 */
export function settled(came, oldest) {
  for (let horizon = oldest; ;) {
    const rest = came.filter(({ answer }) => answer.answered >= horizon);
    const earliest = Math.min(horizon, ...rest.map(({ answer }) => answer.sent));
    if (earliest === horizon) {
      return came.filter(({ answer }) => answer.answered < horizon);
    }
    horizon = earliest;
  }
}

/** How many of these answers were under way together with this one. */
export const together = (answer, answers) =>
  answers.filter((other) => other !== answer && other.sent <= answer.answered && other.answered >= answer.sent).length;
