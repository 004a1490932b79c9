// Every step of a vector through the package: the same in Node and in a browser. What a step must answer
// is told in tests/src/vectors.rs; so is the tolerance.

/** What retryAfter and resetAfter may add to the exact value, in nanoseconds. */
const TOLERANCE = 1000n;

/** A vector file; its instants become bigints, as numbers of JavaScript are not exact beyond 2^53. */
export function parse(text) {
  const quoted = text.replace(/("\w+_ns"\s*:\s*)(\d+)/g, '$1"$2"');
  return JSON.parse(quoted, (key, value) => (key.endsWith("_ns") && value !== null ? BigInt(value) : value));
}

/** The limit of a vector. */
export function limitOf({ limit: given }, Limit) {
  const { algorithm, limit, period_ns: period, burst, anchor } = given;
  return new Limit({ rate: `${limit}/${period}ns`, algorithm, ...(burst ? { burst } : {}), ...(anchor ? { anchor } : {}) });
}

/**
 * Plays a vector through each way that the package can count; the number of steps.
 * @param {object} vector as `parse` gives it
 * @param {object} pack the package: { Limit, Bucket, Limiter, never }, the Limiter where there is one
 * @throws {Error} at the first step that differs
 */
export function play(vector, pack) {
  const limit = limitOf(vector, pack.Limit);
  const ways = { bucket: bucket(limit, pack), "all at once": allAtOnce(limit, vector, pack) };
  if (pack.Limiter) {
    ways.limiter = limiter(limit, pack);
  }
  for (const [way, answer] of Object.entries(ways)) {
    vector.steps.forEach((step, index) => {
      const got = answer(step, index);
      const wrong = differs(step, got, limit, pack.never());
      if (wrong) {
        throw new Error(`${vector.name}, ${way}, step ${index}: ${wrong} differs: expected ${shown(step)}, got ${shown(got)}`);
      }
    });
  }
  return vector.steps.length;
}

function bucket(limit, { Bucket }) {
  const one = new Bucket(limit);
  return ({ t_ns: now, cost }) => {
    const said = shown(one.peek(now, cost));
    const decision = one.check(now, cost);
    if (shown(decision) !== said) {
      throw new Error(`a peek said ${said}, the check ${shown(decision)}`);
    }
    return decision;
  };
}

function allAtOnce(limit, { steps }, { Bucket }) {
  const times = BigUint64Array.from(steps, (step) => step.t_ns);
  const { allowed, remaining, retryAfter, delay } = new Bucket(limit).checkAll(times, Uint32Array.from(steps, (step) => step.cost));
  return (_, index) => ({
    allowed: allowed[index] === 1,
    limit: limit.limit,
    remaining: remaining[index],
    retryAfter: retryAfter[index],
    delay: delay[index],
  });
}

function limiter(limit, { Limiter }) {
  const hasRows = ["sliding_log", "concurrency"].includes(limit.algorithm);
  const table = new Limiter(64, hasRows ? { rows: 8, rowEntries: limit.limit } : {});
  return ({ t_ns: now, cost }) => {
    table.check("a neighbour", limit, now, cost);
    return limit.algorithm === "concurrency" ? table.acquire("the key", limit, now, cost) : table.check("the key", limit, now, cost);
  };
}

/** The first member that is not as it must be. */
function differs(step, got, limit, never) {
  const near = (exact, value) => value >= exact && value - exact <= TOLERANCE;
  const retry = step.retry_after_ns;
  const isRetry = retry === undefined ? (got.retryAfter === 0n) === step.allowed
    : retry === null ? got.retryAfter === never
      : got.retryAfter !== never && near(retry, got.retryAfter);
  const isReset = step.reset_after_ns === undefined || got.resetAfter === undefined || near(step.reset_after_ns, got.resetAfter);
  const members = {
    allowed: got.allowed === step.allowed,
    limit: got.limit === limit.limit,
    remaining: got.remaining === step.remaining,
    delay: got.delay === (step.delay_ns ?? 0n),
    retryAfter: isRetry,
    resetAfter: isReset,
  };
  return Object.keys(members).find((name) => !members[name]);
}

const shown = (value) => JSON.stringify(value, (_, member) => (typeof member === "bigint" ? `${member}n` : member));
