// The model's prediction of what a gateway answers: the same rules, in the same core, here.
//
// A gateway decides somewhere between the instant at which a request goes out and the one at which its
// answer is here; the page cannot see when. What a bucket holds depends on the time since it was full
// last. So the model is asked three times, in states of its own: with the least time that may have
// passed since then, with the most, and with what lies between, which is drawn. An answer is as
// predicted if it lies between what the first two say. Of requests that were under way together nobody
// can tell which came first, and where a token was just coming, which of two got it: there the model may
// be as many tokens apart as there were such requests, and one is always allowed for.

import { told } from "./gateway.js";

/** The clock of the model begins here, far from zero: buckets begin full. */
const EPOCH = 1_000_000_000_000n;
const FIELDS = ["x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"];
const nanos = (ms) => EPOCH + BigInt(Math.round(ms * 1000)) * 1000n;

export class Model {
  /** @param {typeof import("../../pkg/full.js").Rules} Rules */
  constructor(Rules, text) {
    [this.between, this.least, this.most] = [0, 0, 0].map(() => new Clocked(new Rules(text)));
  }

  /**
   * Predicts the answer to a request; `verdict` of the one that came is "same", "near" or "other".
   * `together` is how many others were under way meanwhile.
   */
  judge(request, answer, together) {
    const { sent, answered } = answer;
    const predicted = this.between.check(request, (sent + answered) / 2);
    // A bucket that was full begins here: its time runs from this decision on.
    const begins = told(predicted, "x-ratelimit-remaining") === told(predicted, "x-ratelimit-limit") - 1;
    const all = [
      predicted,
      this.least.check(request, begins ? answered : sent),
      this.most.check(request, begins ? sent : answered),
    ];
    const verdict = agrees(all, answer) ? "same" : isNear(all, answer, Math.max(1, together)) ? "near" : "other";
    // Of what may be, what is shown is what was, where it is among it.
    const alike = (one) => one.status === answer.status && FIELDS.every((name) => told(one, name) === told(answer, name));
    return { predicted: all.find(alike) ?? predicted, verdict };
  }

  free() {
    [this.between, this.least, this.most].forEach(({ rules }) => rules.free());
  }
}

/** Rules with a clock that does not step back: answers may overtake one another. */
class Clocked {
  constructor(rules) {
    this.rules = rules;
    this.latest = 0;
  }

  check(request, at) {
    this.latest = Math.max(this.latest, at);
    return this.rules.check(request, nanos(this.latest));
  }
}

/** The status is one of those predicted, with its fields, and their numbers lie between. */
function agrees(all, answer) {
  const alike = all.filter(({ status }) => status === answer.status);
  if (alike.length === 0) {
    return false;
  }
  const names = (fields) => fields.map(([name]) => name.toLowerCase()).filter((name) => /ratelimit|retry-after/.test(name)).sort();
  const own = names(answer.headers);
  if (own.join() !== names(alike[0].headers).join()) {
    return false;
  }
  return own.every((name) => {
    const value = told(answer, name);
    const numbers = all.map((one) => told(one, name)).filter((number) => number !== null);
    return Number.isNaN(value)
      ? alike.some((one) => text(one, name) === text(answer, name)) // a list: word by word
      : value >= Math.min(...numbers) && value <= Math.max(...numbers);
  });
}

/** Is it at most so many tokens apart from what was predicted? A denial is one less than nothing left. */
function isNear(all, answer, apart) {
  const left = (one) => (one.status === 429 ? -1 : one.status === 200 ? told(one, "x-ratelimit-remaining") : NaN);
  const predicted = all.map(left);
  return left(answer) >= Math.min(...predicted) - apart && left(answer) <= Math.max(...predicted) + apart;
}

const text = ({ headers }, name) => headers.find(([given]) => given.toLowerCase() === name)?.[1];
