// The model's prediction of what a gateway answers: the same rules, in the same core, here.
//
// A gateway decides somewhere between the instant at which a request goes out and the one at which its
// answer is here; the page cannot see when. So the model is asked three times, in three states of its
// own: as if each decision fell at the beginning of that time, in its middle, or at its end. The
// middle is drawn. What the gateway says agrees if one of the three says it.

/** The clock of the model begins here, far from zero: buckets begin full. */
const EPOCH = 1_000_000_000_000n;
const nanos = (ms) => EPOCH + BigInt(Math.round(ms * 1000)) * 1000n;

export class Model {
  /** @param {typeof import("../../pkg/full.js").Rules} Rules */
  constructor(Rules, text) {
    this.states = [0, 1, 2].map(() => new Rules(text));
    this.latest = [0, 0, 0];
  }

  /** Predicts the answer to a request, and whether the one that came agrees. */
  judge(request, answer) {
    const { sent, answered } = answer;
    const instants = [sent, (sent + answered) / 2, answered];
    const told = this.states.map((rules, i) => {
      this.latest[i] = Math.max(this.latest[i], instants[i]); // answers may overtake one another
      return rules.check(request, nanos(this.latest[i]));
    });
    return { predicted: told[1], agrees: told.some((one) => same(one, answer)) };
  }

  /** Everybody's bucket is full again. */
  reset() {
    for (const rules of this.states) {
      rules.reset();
    }
    this.latest = [0, 0, 0];
  }

  free() {
    for (const rules of this.states) {
      rules.free();
    }
  }
}

/** The status and every field that tells of a limit. */
function same(predicted, answer) {
  const told = new Map(answer.headers.map(([name, value]) => [name.toLowerCase(), value]));
  const fields = predicted.headers.filter(([name]) => /ratelimit|retry-after/i.test(name));
  return predicted.status === answer.status && fields.length === told.size &&
    fields.every(([name, value]) => told.get(name.toLowerCase()) === value);
}
