// What the numbers show, in sentences. Each is said only where the numbers bear it out.

import { count, percent, plural } from "../common/parts.js";
import { TITLES } from "./presets.js";

/** From here on something above the limit is worth a sentence of its own. */
const CLEARLY = 1.1;

const times = (value) => `${value.toFixed(value < 10 ? 1 : 0)}×`;
const names = (outcomes) => {
  const list = outcomes.map(({ algorithm }) => TITLES[algorithm].toLowerCase());
  return list.length > 1 ? `${list.slice(0, -1).join(", ")} and ${list.at(-1)}` : list[0] ?? "";
};
const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** How long, in the unit that reads best. */
export function ms(value) {
  return value === 0 ? "0" : value < 1000 ? `${value < 10 ? value.toFixed(1) : Math.round(value)} ms` : `${(value / 1000).toFixed(value < 10_000 ? 2 : 1)} s`;
}

/**
 * @param {{ limit: number, unit: string, burst: number, key: string }} settings
 * @param {object[]} outcomes of TrafficOutcome
 * @param {object} traffic the options in force
 */
export function tell({ limit, unit, burst, key }, outcomes, traffic) {
  const period = { s: "second", m: "minute", h: "hour" }[unit];
  const of = (algorithm) => outcomes.find((outcome) => outcome.algorithm === algorithm);
  const said = [];
  const { requests } = outcomes[0].totals;
  said.push(`${plural(requests, "request")} in ${count(traffic.seconds)} s, from ${plural(traffic.clients, "client")}, under ${count(limit)} a ${period}${key === "client" ? " for each client" : " for all together"}.`);

  const denying = outcomes.filter(({ totals }) => totals.denied > 0);
  if (denying.length === 0) {
    said.push("Nobody is denied by any of them: below the limit the choice of an algorithm changes nothing but memory.");
  }

  const log = of("sliding_log");
  const mean = requests / traffic.seconds;
  const rate = limit / { s: 1, m: 60, h: 3600 }[unit];
  if (key === "all" && mean <= rate && traffic.burst === 0 && log?.totals.denied > 0) {
    said.push(`On average ${mean.toFixed(1)} come a second, below the limit, and yet some are denied: chance bunches them. The sliding log denies ${percent(log.totals.denied, log.totals.attempts)}; the token bucket, whose burst is there for that, ${percent(of("token_bucket").totals.denied, requests)}.`);
  }

  const bucket = of("token_bucket");
  // Retries.
  if (traffic.retry !== "none") {
    const worst = outcomes.reduce((a, b) => (b.totals.retries > a.totals.retries ? b : a));
    if (worst.totals.retries > 0) {
      const { attempts, retries, gaveUp } = worst.totals;
      said.push(`Retries are ${percent(retries, attempts)} of the traffic at the ${TITLES[worst.algorithm].toLowerCase()}: ${plural(attempts, "attempt")} for ${plural(requests, "request")}${gaveUp > 0 ? `, and ${count(gaveUp)} still gave up` : ", and all got through"}. ${
        { immediate: "Trying again at once makes the crowd larger and the answers no better.", backoff: "Doubling the wait thins the crowd, but all who were denied together come again together.",
          jitter: "Waiting as told, and a random while more, spreads the return, so that fewer knock in vain.", retry_after: "All wait exactly as told, so all return in the same instant: a promise kept to one client is kept to the first of them." }[traffic.retry]}`);
    }
  }

  // One client among many.
  if (traffic.abuser > 0 && bucket) {
    const { admitted, denied } = bucket.byClient;
    const sum = (list, from = 0) => list.reduce((total, value, i) => (i >= from ? total + value : total), 0);
    const others = [sum(admitted, 1), sum(denied, 1)];
    const share = percent(admitted[0], sum(admitted));
    said.push(key === "client"
      ? `With a bucket for each client the abuser gets its ${count(limit)} a ${period} and no more, and ${percent(others[0], others[0] + others[1])} of the others’ attempts are admitted (token bucket).`
      : `With one bucket for all, the abuser takes ${share} of what is admitted, and of the others’ attempts only ${percent(others[0], others[0] + others[1])} pass (token bucket). Count for each client, and see.`);
  }

  // The most in any one period, against the limit.
  const over = outcomes.filter(({ worst }) => worst.admitted > limit);
  const window = of("fixed_window");
  if (window && window.worst.admitted > limit * CLEARLY) {
    said.push(`The fixed window admitted ${count(window.worst.admitted)} within one ${period}, from ${window.worst.from.toFixed(2)} s on: ${times(window.worst.admitted / limit)} the limit. Its count begins anew at the boundary, whatever came just before.`);
  }
  const sliding = of("sliding_window");
  if (sliding && sliding.worst.admitted > limit * CLEARLY) {
    said.push(`The sliding window admitted ${count(sliding.worst.admitted)}, ${times(sliding.worst.admitted / limit)}: from two counts it estimates as if the window before had been evenly used, and here it was not.`);
  }
  if (bucket && bucket.worst.admitted > limit) {
    said.push(`The token bucket admitted ${count(bucket.worst.admitted)} within one ${period}. That is what was asked for: at most its burst (${count(burst)}) and what comes back meanwhile (${count(limit)}).`);
  }
  const within = outcomes.filter((outcome) => !over.includes(outcome) && outcome.algorithm !== "concurrency");
  if (over.length > 0 && within.length > 0) {
    said.push(`${capital(names(within))} never admitted more than ${count(limit)} in any one ${period}.`);
  }

  const queue = of("leaky_bucket");
  if (queue && queue.totals.delayed > 0) {
    said.push(`The leaky bucket did not turn away what had room to wait: ${count(queue.totals.delayed)} of its ${plural(queue.totals.admitted, "admitted request")} ${queue.totals.delayed === 1 ? "was" : "were"} sent on later, by up to ${ms(queue.delay.max)}.`);
  }

  if (log && bucket) {
    said.push(`A key takes ${count(bucket.memory)} bytes as a token bucket and ${count(log.memory)} as a sliding log, which remembers each admission of a ${period}.`);
  }
  return said;
}

/**
 * Rows of who got through, with one limit for all and with one for each client.
 * @param {{ all: object, client: object }} ways of TrafficOutcome
 * @param {{ abuser: number }} traffic the options in force
 */
export function byClient({ all, client }, { abuser }) {
  const ways = [all, client].map(({ byClient: { admitted, denied } }) =>
    Array.from(admitted, (passed, number) => ({ number, passed, asked: passed + denied[number] })));
  const sum = (list) => list.reduce((so, { passed, asked }) => ({ passed: so.passed + passed, asked: so.asked + asked }), { passed: 0, asked: 0 });
  const part = ({ passed, asked }) => (asked > 0 ? passed / asked : 0);
  const told = (one) => (one === undefined || one.asked === 0 ? "none came"
    : `${count(one.passed)} of ${count(one.asked)} (${percent(one.passed, one.asked)})${one.number === undefined ? "" : `, client ${one.number}`}`);
  const row = (name, pick) => [name, ...ways.map((list) => told(pick(list)))];
  const others = (list) => list.slice(abuser > 0 ? 1 : 0);
  const came = (list) => others(list).filter(({ asked }) => asked > 0);
  const rest = others(ways[0]).length;
  const rows = abuser > 0 ? [row("Client 0, the abuser", ([{ passed, asked }]) => ({ passed, asked }))] : [];
  if (rest > 0) {
    rows.push(row(rest === 1 ? `The ${abuser > 0 ? "other" : "one"} client` : `${abuser > 0 ? "The other" : "All"} ${count(rest)} clients together`, (list) => sum(others(list))));
  }
  if (rest > 1) {
    rows.push(
      row("Of these, the best served", (list) => came(list).reduce((a, b) => (a && part(a) >= part(b) ? a : b), undefined)),
      row("Of these, the worst served", (list) => came(list).reduce((a, b) => (a && part(a) <= part(b) ? a : b), undefined)));
  }
  return rows;
}
