// Clusters to start from. Numbers are in the units of the sliders: milliseconds, percent, a second.

export const DEFAULTS = {
  instances: 20, // gateways
  keys: 1, // subjects that are limited; of several the first is asked most, by Zipf's law
  limit: 1000, // a second and key
  burst: 1000, // at once
  offered: 900, // requests a second, of all keys, to all instances
  lease: 50, // units fetched ahead at most; 0 for none
  latency: 1, // milliseconds to Redis and back
  loss: 0, // percent of messages
  timeout: 5, // milliseconds that a request waits for Redis
  onStoreError: "local",
};

/** What each may be: of the sliders, and of an address that somebody else wrote. */
export const RANGES = {
  latency: { min: 0.2, max: 50, integer: false },
  loss: { min: 0, max: 50, integer: false },
  offered: { min: 0, max: 10_000, integer: false },
  instances: { min: 1, max: 100 },
  keys: { min: 1, max: 100 },
  limit: { min: 10, max: 10_000 },
  burst: { min: 1, max: 10_000 },
  lease: { min: 0, max: 1000 },
  timeout: { min: 1, max: 50 },
};

/** `outageAt`: milliseconds after which Redis is gone. */
export const PRESETS = [
  { id: "healthy", title: "Healthy", settings: {} },
  { id: "over", title: "Over the limit", settings: { offered: 3000 } },
  { id: "slow", title: "Slow Redis", settings: { latency: 12, lease: 0 } }, // with leases hardly anybody would wait for it
  { id: "dies", title: "Redis dies", settings: { offered: 1500 }, outageAt: 5000 },
  { id: "lossy", title: "Lossy network", settings: { loss: 5 } },
  { id: "no-leases", title: "No leases", settings: { lease: 0 } },
];

/** How Redis may be away, as the package names it. */
export const OUTAGES = [
  ["", "answers"],
  ["refused", "is down: nobody listens"],
  ["lost", "is cut off: calls are lost"],
  ["stopped", "hangs: calls wait until it goes on"],
];

/** What may change while it runs, as the package names it: a message takes half of the way there and
 * back, give or take a fifth. */
export function running({ keys, limit, burst, lease, timeout, onStoreError, latency, loss, offered }) {
  const limitText = `${limit}/s burst ${burst}`;
  return {
    keys, spread: "zipf", limit: limitText, lease, timeout, onStoreError, offered,
    latency: latency * 0.4, jitter: latency * 0.2, loss: loss / 100,
  };
}

/** All of it. */
export const options = (settings) => ({ instances: settings.instances, seed: 1, ...running(settings) });
