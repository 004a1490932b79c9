// What the cluster does just now, and why, in plain sentences. `now` is what happened in the last
// seconds, `all` since the beginning; both as counts.

const number = new Intl.NumberFormat("en");
const tell = (value) => number.format(Math.round(value));
const share = (part, whole) => (whole > 0 ? (100 * part) / whole : 0);

/**
 * @param {object} settings as in presets.js
 * @param {{ open: number, isDown: boolean }} state breakers that are not closed; is Redis away?
 * @param {{ seconds: number, offered: number, admitted: number, lease: number, asked: number,
 *           denial: number, fallback: number, calls: number }} now
 * @returns {string}
 */
export function tellCluster(settings, state, now) {
  if (now.offered === 0) {
    return "Nothing is asked. Press Run, or offer more.";
  }
  const { instances, limit, keys, onStoreError, timeout, latency, lease } = settings;
  const rate = now.admitted / now.seconds;
  const told = [];
  if (state.isDown) {
    told.push("Redis does not answer.");
  }
  if (state.open > 0) {
    const who = instances === 1 ? "The one breaker" : state.open === instances ? `All ${instances} breakers` : `${state.open} of ${instances} breakers`;
    const why = state.isDown ? "" : latency > timeout
      ? `Redis takes ${latency} ms and a request waits at most ${timeout} ms, so calls count as failed. `
      : "Too many calls were lost. ";
    told.push(`${why}${who} ${state.open === 1 ? "is open: this instance does not wait for Redis, and asks" : "are open: these instances do not wait for Redis, and ask"} again with one probe at a time. A probe that finds nobody is no call.`);
  }
  const fallen = share(now.fallback, now.offered);
  if (fallen >= 1) {
    told.push({
      local: `${percent(fallen)} of requests are decided without Redis: ${instances === 1 ? `the one instance admits the limit, ${tell(limit)} a second and key` : `each instance admits its piece, ${piece(limit, instances)} a second and key, so that all pieces add up to the limit`}.`,
      allow: `${percent(fallen)} of requests are decided without Redis, and all of these are let through: ${tell(rate)} a second pass, and the limit is ${tell(limit * keys)}.`,
      deny: `${percent(fallen)} of requests are decided without Redis, and all of these are denied, as on_store_error says.`,
    }[onStoreError]);
  }
  if (!state.isDown && state.open === 0 && fallen < 1) {
    told.push("Redis is well.");
    if (share(now.denial, now.offered) >= 5) {
      told.push(`${percent(share(now.denial, now.offered))} of requests are denied from memory: an instance that was told no does not ask before the wait is over.`);
    }
    if (lease === 0) {
      told.push("Without leases every request that may pass asks Redis, and waits for it.");
    } else if (share(now.lease, now.offered) >= 5) {
      told.push(`${percent(share(now.lease, now.offered))} are admitted from leases, units that were fetched ahead, and wait for nobody.`);
    } else if (now.admitted > 0) {
      told.push("Few requests are admitted from leases: an instance fetches units ahead when a key is in demand and Redis has some left.");
    }
    const calls = tell(share(now.calls, now.offered));
    told.push(`Redis carries ${calls} ${calls === "1" ? "call" : "calls"} for 100 requests.`);
  }
  return told.join(" ");
}

const percent = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)}%`;

/** The part of a limit that one of the instances has, as people say it. */
function piece(limit, instances) {
  const part = limit / instances;
  return Number.isInteger(part) ? tell(part) : `about ${part.toFixed(part < 10 ? 1 : 0)}`;
}
