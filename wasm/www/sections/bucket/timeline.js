// What happened to one bucket, and when it is: a clock of its own, the requests, and the bucket.
//
// The past can be visited: the bucket is then made anew, and asked the requests of before that instant
// once more. The same requests give the same answers, so nothing of a bucket has to be kept but them.
// Whoever sends from the past gives up what came later.

import { Bucket, headers, Limit, problem } from "../../pkg/tollgate.js";

/** The clock's beginning. Not 0: there a bucket that was never used and one that just was look alike. */
export const START = 1_000_000_000_000_000n;
export const SECOND = 1_000_000_000n;
/** Requests that are kept. */
export const MOST = 100_000;
/** Points of the curve that are kept. */
const POINTS = 6000;
/** Of a jump in time, points between. */
const BETWEEN = 48;

export class Timeline {
  /** @param {{ rate: string, burst: number }} spec */
  constructor(spec) {
    this.reset(spec);
  }

  reset(spec) {
    this.free();
    this.limit = new Limit({ ...spec, algorithm: "token_bucket" });
    this.bucket = new Bucket(this.limit);
    this.changes = [{ index: 0, at: START, spec }];
    this.requests = [];   // { n, at, decision, before, after, latest }
    this.points = [];     // { at, tokens }
    this.actions = [];
    this.allowed = 0;
    this.now = START;
    this.end = START;     // the latest instant that was
    this.asked = 0;       // of the requests, those before now
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

  /** Lets so much time pass. */
  pass(nanos, isJump = false) {
    if (nanos <= 0n) {
      return;
    }
    const from = this.now;
    const to = from + nanos;
    if (this.isPast) {
      this.visit(to);
      return;
    }
    if (isJump) {
      for (let i = 1n; i < BigInt(BETWEEN); i++) {
        this.now = from + (nanos * i) / BigInt(BETWEEN);
        this.note();
      }
    }
    this.now = this.end = to;
    this.note();
    this.did("+", nanos);
  }

  /** One request of one token, now. */
  send() {
    this.forgetFuture();
    const before = this.state;
    const decision = this.bucket.check(this.now);
    const after = this.state;
    const request = { n: this.requests.length + 1, at: this.now, decision, before, after, capacity: this.limit.burst };
    this.requests.push(request);
    this.asked = this.requests.length;
    this.allowed += decision.allowed ? 1 : 0;
    this.put(before.tokens);
    this.put(after.tokens);
    this.did("b", 1);
    return request;
  }

  /** Evenly spaced requests over a span of time, the first at once. */
  stream(perSecond, seconds) {
    const step = SECOND / BigInt(perSecond);
    for (let left = perSecond * seconds; left > 0 && !this.isFull; left--) {
      this.send();
      this.pass(step);
    }
  }

  /** Another limit from now on; what was spent stays spent. */
  change(spec) {
    this.forgetFuture();
    const limit = new Limit({ ...spec, algorithm: "token_bucket" }); // throws before anything is changed
    this.limit.free();
    this.limit = limit;
    this.bucket.setLimit(limit, this.now);
    if (this.changes.at(-1).index === this.requests.length) {
      this.changes.pop();
    }
    this.changes.push({ index: this.requests.length, at: this.now, spec });
    this.note();
  }

  /** Goes to an instant, in the past or not. */
  visit(at) {
    const to = at < START ? START : at;
    if (to >= this.now && !this.isPast) {
      this.pass(to - this.now, true);
      return;
    }
    this.now = to > this.end ? this.end : to;
    let asked = 0;
    this.bucket.free();
    const [first, ...later] = this.changes;
    this.use(first.spec);
    this.bucket = new Bucket(this.limit);
    const ask = (until) => {
      let last = asked;
      while (last < until && this.requests[last].at <= this.now) {
        last += 1;
      }
      this.bucket.checkAll(BigUint64Array.from(this.requests.slice(asked, last), (request) => request.at));
      asked = last;
    };
    for (const { index, at: changed, spec } of later) {
      ask(index);
      if (changed > this.now) {
        break;
      }
      this.use(spec);
      this.bucket.setLimit(this.limit, changed);
    }
    ask(this.requests.length);
    this.asked = asked;
    this.allowed = this.requests.slice(0, asked).reduce((sum, { decision }) => sum + (decision.allowed ? 1 : 0), 0);
  }

  use(spec) {
    this.limit.free();
    this.limit = new Limit({ ...spec, algorithm: "token_bucket" });
  }

  forgetFuture() {
    if (!this.isPast) {
      return;
    }
    this.requests.length = this.asked;
    this.changes = this.changes.filter(({ at }) => at <= this.now);
    this.points = this.points.filter(({ at }) => at <= this.now);
    this.end = this.now;
    this.actions = null; // what is left of them cannot be told in short
  }

  /** The answer to a request, as a gateway writes it. */
  answer({ decision }, family) {
    return {
      status: decision.allowed ? "200 OK" : "429 Too Many Requests",
      headers: headers("api", this.limit, decision, family),
      body: problem("api", this.limit, decision),
    };
  }

  note() {
    this.put(this.state.tokens);
  }

  put(tokens) {
    this.points.push({ at: this.now, tokens });
    if (this.points.length > POINTS) {
      this.points.splice(0, POINTS / 4);
    }
  }

  /** Keeps what was done in short, for the address: "b10 +1 b10"; gives up when it becomes long. */
  did(kind, amount) {
    if (!this.actions) {
      return;
    }
    const last = this.actions.at(-1);
    if (last?.kind === kind) {
      last.amount += amount;
    } else {
      this.actions.push({ kind, amount });
      if (this.actions.length > 40) {
        this.actions = null;
      }
    }
  }

  /** What was done, or null where it is too long to tell. */
  get script() {
    return this.actions?.map(({ kind, amount }) => kind + (kind === "+" ? Number(amount) / 1e9 : amount)).join("_") ?? null;
  }

  /** Does what a script says: b10 is ten requests at once, +1 a second that passes, s8x5 eight a second for five seconds. */
  play(script) {
    for (const [, kind, amount, seconds] of script.matchAll(/([b+s])(\d+(?:\.\d+)?)(?:x(\d+))?/g)) {
      if (kind === "+") {
        this.pass(BigInt(Math.round(Math.min(Number(amount), 86_400) * 1e9)), true);
      } else if (kind === "b") {
        for (let left = Math.min(Math.floor(Number(amount)), 1000); left > 0 && !this.isFull; left--) {
          this.send();
        }
      } else {
        this.stream(Math.min(Math.max(Math.floor(Number(amount)), 1), 200), Math.min(Number(seconds ?? 1), 60));
      }
    }
  }
}
