// What happened to one bucket, and when it is: a clock of its own, the requests, and the bucket.
//
// The past can be visited: the bucket is then made anew, and asked the requests of before that instant
// again. The same requests give the same answers, so nothing of a request has to be kept but its time;
// what was answered is kept of the latest alone.
// Whoever sends from the past gives up what came later.

import { Bucket, headers, Limit, problem } from "../../pkg/tollgate.js";
import { isLegal, legal } from "../common/range.js";

/** The clock's beginning. Not 0: there a bucket that was never used and one that just was look alike. */
export const START = 1_000_000_000_000_000n;
export const SECOND = 1_000_000_000n;
/** Requests whose times are kept, of 8 bytes each: more than an hour of the fastest stream. */
export const MOST = 1_000_000;
/** Requests before now whose answers are kept. */
export const RECENT = 60;
/** Points of the curve that are kept: two for each request, and where a line bends. */
const POINTS = 6000;
/** Of a jump in time, points between. */
const BETWEEN = 48n;
/** What may be set, and what a script may say. */
export const CAPACITY = { min: 1, max: 1000 };
export const REFILL = { min: 1, max: 1000 };
const WAIT = { min: 0, max: 86_400, integer: false };
const AT_ONCE = { min: 1, max: 1000 };
/** Steps and requests that an address carries. */
const STEPS = 200;
const REQUESTS = 20_000;

export class Timeline {
  /** @param {{ rate: string, burst: number }} spec */
  constructor(spec) {
    this.reset(spec);
  }

  reset(spec) {
    this.free();
    this.limit = limitOf(spec);
    this.bucket = new Bucket(this.limit);
    this.changes = [{ index: 0, at: START, spec }];
    this.sent = 0;        // requests; so many of `times` are theirs
    this.times ??= new BigUint64Array(1024);
    this.recent = [];     // of the latest before now: { n, at, decision, stored, before, after, spec }
    this.points = [];     // { at, seconds, tokens, mark }
    this.actions = [];
    this.asked = 0;       // requests before now
    this.allowed = 0;     // of those
    this.changed = 1;     // and so many changes
    this.now = START;
    this.end = START;     // the latest instant that was
    this.note();
  }

  free() {
    this.bucket?.free();
    this.limit?.free();
    this.bucket = this.limit = null;
  }

  /** What the bucket holds now; asked once for each instant at which nothing happens. */
  get state() {
    const { now, bucket, asked } = this;
    const change = this.changes[this.changed - 1];
    const { known } = this;
    if (known?.now !== now || known.bucket !== bucket || known.asked !== asked || known.change !== change) {
      this.known = { now, bucket, asked, change, state: bucket.state(now) };
    }
    return this.known.state;
  }

  get isPast() {
    return this.now < this.end;
  }

  get isFull() {
    return this.asked >= MOST;
  }

  /** The latest request before now, or undefined. */
  get latest() {
    return this.recent.at(-1);
  }

  get spec() {
    return this.changes[this.changed - 1].spec;
  }

  /** Lets so much time pass. `isJump`: at once, so that the curve between has to be drawn. */
  pass(nanos, isJump = false) {
    if (this.isPast) {
      this.forward(this.now + nanos);
      return;
    }
    const from = this.now;
    if (isJump) {
      for (let i = 1n; i < BETWEEN; i++) {
        this.now = from + (nanos * i) / BETWEEN;
        this.note();
      }
    }
    this.now = this.end = from + nanos;
    this.note();
    this.did("w", nanos);
  }

  /** Requests of one token each, now; how many there was room for. */
  send(requests = 1) {
    this.forgetFuture();
    const count = Math.min(requests, MOST - this.sent);
    while (this.sent + count > this.times.length) {
      const longer = new BigUint64Array(2 * this.times.length);
      longer.set(this.times);
      this.times = longer;
    }
    this.times.fill(this.now, this.sent, this.sent + count);
    this.sent += count;
    if (count > 0) {
      this.did("b", count);
    }
    let left = this.state.tokens;
    const mark = (isAllowed) => {
      this.put(left, 0);
      left -= isAllowed ? 1 : 0;
      this.put(left, isAllowed ? 1 : 2);
    };
    const told = this.askUntil(this.sent);
    told.slice(0, told.indexOf(0) + 1 || told.length).forEach((isAllowed) => mark(isAllowed === 1)); // denied ones stand in one place
    return count;
  }

  /**
   * Asks the bucket all that was sent, up to that number, once more or for the first time. The latest are
   * asked one by one, and their answers kept; those before them all at once. Who of them was allowed?
   */
  askUntil(number) {
    const from = this.asked;
    const many = Math.max(number - RECENT, from);
    const told = new Uint8Array(number - from);
    if (many > from) {
      const { allowed } = this.bucket.checkAll(this.times.slice(from, many));
      told.set(allowed);
      this.allowed += allowed.reduce((sum, one) => sum + one, 0);
      this.asked = many;
      this.recent = [];
    }
    while (this.asked < number) {
      told[this.asked - from] = this.ask(this.times[this.asked]).decision.allowed ? 1 : 0;
    }
    return told;
  }

  /** Asks the bucket, and keeps what was answered. */
  ask(at) {
    const before = at === this.now ? this.state : this.bucket.state(at);
    const stored = this.bucket.state(before.latest);
    const decision = this.bucket.check(at);
    this.asked += 1;
    this.allowed += decision.allowed ? 1 : 0;
    const request = { n: this.asked, at, decision, stored, before, after: this.bucket.state(at), spec: this.spec };
    this.recent.push(request);
    if (this.recent.length >= 2 * RECENT) {
      this.recent.splice(0, RECENT);
    }
    return request;
  }

  /** Another limit from now on; what was spent stays spent. */
  change(spec) {
    this.forgetFuture();
    const limit = limitOf(spec); // throws before anything is changed
    this.put(this.state.tokens, 0);
    this.limit.free();
    this.limit = limit;
    this.bucket.setLimit(limit, this.now);
    if (this.changes.at(-1).at === this.now && this.changes.length > 1) {
      this.changes.pop();
    }
    this.changes.push({ index: this.sent, at: this.now, spec });
    this.changed = this.changes.length;
    this.put(this.state.tokens, 0); // the line jumps
    this.did("l", spec);
  }

  /** Goes to an instant: of the past, or one that is still to come. */
  visit(at) {
    const to = at < START ? START : at;
    if (to < this.now) {
      this.bucket.free();
      this.limit.free();
      this.limit = limitOf(this.changes[0].spec);
      this.bucket = new Bucket(this.limit);
      this.now = START;
      this.asked = this.allowed = 0;
      this.recent = [];
      this.changed = 1;
    }
    this.forward(to);
  }

  /** Asks once more what was asked until then; beyond the end, time passes. */
  forward(to) {
    const until = to < this.end ? to : this.end;
    const last = this.sentUntil(until);
    for (;;) {
      const change = this.changes[this.changed];
      this.askUntil(Math.min(change?.index ?? last, last));
      if (!change || change.at > until || change.index > last) {
        break;
      }
      this.limit.free();
      this.limit = limitOf(change.spec);
      this.bucket.setLimit(this.limit, change.at);
      this.changed += 1;
    }
    this.now = until;
    if (to > this.end) {
      this.pass(to - this.end, true);
    }
  }

  /** How many were sent until then. */
  sentUntil(instant) {
    let [low, high] = [0, this.sent];
    while (low < high) {
      const middle = (low + high) >> 1;
      [low, high] = this.times[middle] <= instant ? [middle + 1, high] : [low, middle];
    }
    return low;
  }

  forgetFuture() {
    if (!this.isPast) {
      return;
    }
    this.sent = this.asked;
    this.changes.length = this.changed;
    this.points = this.points.filter(({ at }) => at <= this.now);
    this.end = this.now;
    this.actions = null; // what is left of them cannot be told in short
  }

  /** The answer to a request, as a gateway writes it. */
  answer({ decision, spec }, family) {
    const limit = limitOf(spec);
    const answer = {
      status: decision.allowed ? "200 OK" : "429 Too Many Requests",
      headers: headers("api", limit, decision, family),
      body: problem("api", limit, decision),
    };
    limit.free();
    return answer;
  }

  /** A point of the curve. Between requests it is straight: a point in the midst of a line is not kept. */
  note() {
    const { tokens } = this.state;
    const [before, last] = this.points.slice(-2);
    const isFull = (count) => count >= this.limit.burst;
    if (last?.mark === 0 && before && before.at < last.at && isFull(before.tokens) === isFull(last.tokens) && isFull(last.tokens) === isFull(tokens)) {
      this.points.pop();
    }
    this.put(tokens, 0);
  }

  put(tokens, mark) {
    this.points.push({ at: this.now, seconds: Number(this.now - START) / 1e9, tokens, mark });
    if (this.points.length > POINTS) {
      this.points.splice(0, POINTS / 4);
    }
  }

  /** Keeps what was done in short, for the address; gives up when it becomes long. */
  did(kind, amount) {
    if (!this.actions) {
      return;
    }
    const last = this.actions.at(-1);
    if (last?.kind === kind) {
      last.amount = kind === "l" ? amount : last.amount + amount;
    } else {
      this.actions.push({ kind, amount });
    }
    if (this.actions.length > STEPS || this.sent > REQUESTS) {
      this.actions = null;
    }
  }

  /** What was done, or null where it is too long to tell. */
  get script() {
    const tell = {
      w: (nanos) => `w${Number(nanos) / 1e9}`,
      b: (requests) => Array.from({ length: Math.ceil(requests / AT_ONCE.max) }, (_, i) => `b${Math.min(requests - i * AT_ONCE.max, AT_ONCE.max)}`).join("_"),
      l: ({ rate, burst }) => `l${burst}x${rate.replace("/", "")}`,
    };
    return this.actions?.map(({ kind, amount }) => tell[kind](amount)).join("_") ?? null;
  }

  /** Does what the steps of a script say. */
  play(steps) {
    for (const { kind, amount, spec } of steps) {
      if (kind === "w") {
        this.pass(BigInt(Math.round(amount * 1e9)), true);
      } else if (kind === "l") {
        this.change(spec);
      } else {
        this.send(amount);
      }
    }
  }
}

/**
 * The steps of a script: b10 is ten requests at once, w1 a second that passes, l5x2s from there on
 * capacity 5 and 2/s. `wrong` says why there is one that is none of these, or too many; what came before
 * it stands in `steps`, and as text in `rest`.
 */
export function readScript(text) {
  const steps = [];
  const parts = text.split("_");
  let requests = 0;
  let wrong = null;
  for (const part of parts) {
    const [, kind, number, refill, unit] = part.match(/^([bwl])(\d+(?:\.\d+)?)(?:x(\d+)([smh]))?$/) ?? [];
    const amount = Number(number);
    const isStep = kind === "w" ? isLegal(WAIT, amount)
      : kind === "b" ? isLegal(AT_ONCE, amount)
        : kind === "l" && refill !== undefined && isLegal(CAPACITY, amount) && isLegal(REFILL, Number(refill));
    requests += kind === "b" ? amount : 0;
    if (!isStep) {
      wrong = `has as step ${steps.length + 1} “${part.slice(0, 24)}”: a step is b and ${legal(AT_ONCE)}, w and seconds up to ${WAIT.max.toLocaleString("en")}, or l5x2s for another limit`;
    } else if (steps.length >= STEPS || requests > REQUESTS) {
      wrong = `has more than ${STEPS} steps or ${REQUESTS.toLocaleString("en")} requests`;
    }
    if (wrong) {
      break;
    }
    steps.push({ kind, amount, spec: kind === "l" ? { rate: `${refill}/${unit}`, burst: amount } : null });
  }
  return { steps, wrong, rest: parts.slice(0, steps.length).join("_") };
}

const limitOf = ({ rate, burst }) => new Limit(`${rate} burst ${burst}`, "token_bucket");
