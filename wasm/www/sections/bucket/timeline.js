// What happened to one bucket, and when it is: a clock of its own, the requests, and the bucket.
//
// The past can be visited: the bucket is then made anew, and asked the requests of before that instant
// again. The same requests give the same answers, so nothing of a bucket has to be kept but them.
// Whoever sends from the past gives up what came later.

import { Bucket, headers, Limit, problem } from "../../pkg/tollgate.js";

/** The clock's beginning. Not 0: there a bucket that was never used and one that just was look alike. */
export const START = 1_000_000_000_000_000n;
export const SECOND = 1_000_000_000n;
/** Requests that are kept. */
export const MOST = 20_000;
/** Points of the curve that are kept: 60 a second, and two for each request. */
const POINTS = 6000;
/** Of a jump in time, points between. */
const BETWEEN = 48n;

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
    this.requests = [];   // { n, at, decision, stored, before, after, limit }
    this.points = [];     // { at, tokens, mark }
    this.actions = [];
    this.allowed = 0;     // of the requests before now
    this.asked = 0;       // those are so many
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

  get state() {
    return this.bucket.state(this.now);
  }

  get isPast() {
    return this.now < this.end;
  }

  get isFull() {
    return this.requests.length >= MOST;
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

  /** One request of one token, now. */
  send() {
    this.forgetFuture();
    const before = this.state;
    const stored = this.bucket.state(before.latest);
    const decision = this.bucket.check(this.now);
    const after = this.state;
    this.requests.push({ n: this.requests.length + 1, at: this.now, decision, stored, before, after, spec: this.spec });
    this.asked = this.requests.length;
    this.allowed += decision.allowed ? 1 : 0;
    this.put(before.tokens, 0);
    this.put(after.tokens, decision.allowed ? 1 : 2);
    this.did("b", 1);
  }

  /** Another limit from now on; what was spent stays spent. */
  change(spec) {
    this.forgetFuture();
    const limit = limitOf(spec); // throws before anything is changed
    this.limit.free();
    this.limit = limit;
    this.bucket.setLimit(limit, this.now);
    if (this.changes.at(-1).at === this.now && this.changes.length > 1) {
      this.changes.pop();
    }
    this.changes.push({ index: this.requests.length, at: this.now, spec });
    this.changed = this.changes.length;
    this.note();
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
      this.changed = 1;
    }
    this.forward(to);
  }

  /** Asks once more what was asked until then; beyond the end, time passes. */
  forward(to) {
    const until = to < this.end ? to : this.end;
    for (;;) {
      const change = this.changes[this.changed];
      const last = change?.index ?? this.requests.length;
      const from = this.asked;
      while (this.asked < last && this.requests[this.asked].at <= until) {
        this.allowed += this.requests[this.asked].decision.allowed ? 1 : 0;
        this.asked += 1;
      }
      if (this.asked > from) {
        this.bucket.checkAll(BigUint64Array.from(this.requests.slice(from, this.asked), (request) => request.at));
      }
      if (!change || change.at > until || this.asked < last) {
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

  forgetFuture() {
    if (!this.isPast) {
      return;
    }
    this.requests.length = this.asked;
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

  note() {
    this.put(this.state.tokens, 0);
  }

  put(tokens, mark) {
    this.points.push({ at: this.now, tokens, mark });
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
      if (this.actions.length > 60) {
        this.actions = null;
      }
    }
  }

  /** What was done, or null where it is too long to tell. */
  get script() {
    const tell = { w: (nanos) => `w${Number(nanos) / 1e9}`, b: (requests) => `b${requests}`, l: ({ rate, burst }) => `l${burst}x${rate.replace("/", "")}` };
    return this.actions?.map(({ kind, amount }) => tell[kind](amount)).join("_") ?? null;
  }

  /** Does what a script says: b10 is ten requests at once, w1 a second that passes, l5x2s from there on capacity 5 and 2/s. */
  play(script) {
    for (const step of script.split("_")) {
      const [, kind, amount, refill, unit] = step.match(/^([bwl])(\d+(?:\.\d+)?)(?:x(\d+)([smh]))?$/) ?? [];
      if (kind === "w") {
        this.pass(BigInt(Math.round(Math.min(Number(amount), 86_400) * 1e9)), true);
      } else if (kind === "b") {
        for (let left = Math.min(Math.floor(Number(amount)), 1000); left > 0 && !this.isFull; left--) {
          this.send();
        }
      } else if (kind === "l" && refill) {
        this.change({ rate: `${refill}/${unit}`, burst: Math.floor(Number(amount)) });
      }
    }
  }
}

const limitOf = ({ rate, burst }) => new Limit(`${rate} burst ${burst}`, "token_bucket");
