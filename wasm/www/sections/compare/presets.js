// Traffic to start from, with the limit that shows its point best. `base` is the package's preset, where it
// has another name than ours, and `traffic` what differs from it: mostly a shorter time, so that the plots
// show more.

export const PRESETS = [
  { id: "steady", title: "Steady", hint: "8 a second on average, as chance has it, under a limit of 10", traffic: { seconds: 30 }, limit: 10, unit: "s", burst: 10, key: "all" },
  { id: "burst", title: "Burst", hint: "40 at once, now and then, out of quiet", traffic: { seconds: 30 }, limit: 10, unit: "s", burst: 20, key: "all" },
  { id: "window_boundary", title: "Window boundary", hint: "far more than is allowed just before a second begins, and again just after", traffic: { seconds: 4, at: 2, every: 0 }, limit: 10, unit: "s", burst: 10, key: "all" },
  { id: "retry_storm", title: "Retry storm", hint: "who is denied tries again 0.2 s later, whatever the answer says", traffic: { seconds: 12, at: 3 }, limit: 50, unit: "s", burst: 50, key: "all" },
  { id: "retry_jitter", title: "Retries with jitter", hint: "who is denied waits as told, and a random while more", traffic: { seconds: 12, at: 3 }, limit: 50, unit: "s", burst: 50, key: "all" },
  { id: "cron_spike", title: "Cron spike", hint: "all clients every 20 s, within a tenth of a second", limit: 50, unit: "s", burst: 50, key: "all" },
  { id: "abuser", title: "One abuser", hint: "one client among many asks without end", traffic: { seconds: 20 }, limit: 10, unit: "s", burst: 10, key: "client" },
  { id: "spike_abuser", base: "cron_spike", title: "Cron spike and an abuser", hint: "all 60 clients every 10 s, which the burst is meant for, while one of them asks 100 times a second", traffic: { seconds: 30, at: 5, every: 10, abuser: 100 }, limit: 20, unit: "s", burst: 60, key: "all" },
];

/** What of the traffic may be set: name, label, unit, and range as range.js has it. */
export const FIELDS = [
  { name: "seconds", label: "Duration", unit: "s", min: 1, max: 120 },
  { name: "rate", label: "Steady part", unit: "requests/s", min: 0, max: 1000, integer: false },
  { name: "clients", label: "Clients", unit: "", min: 1, max: 1000 },
  { name: "burst", label: "Requests of a burst", unit: "", min: 0, max: 5000 },
  { name: "at", label: "First burst at", unit: "s", min: 0, max: 120, integer: false },
  { name: "every", label: "Bursts every", unit: "s (0: one burst)", min: 0, max: 120, gap: 0.1, integer: false },
  { name: "spread", label: "A burst takes", unit: "s", min: 0, max: 60, integer: false },
  { name: "abuser", label: "Client 0 asks besides", unit: "requests/s", min: 0, max: 1000, integer: false },
  { name: "backoff", label: "Back-off", unit: "ms", min: 1, max: 60_000 },
  { name: "attempts", label: "Attempts at most", unit: "", min: 1, max: 100 },
  { name: "seed", label: "Seed", unit: "", min: 0, max: 1_000_000 },
];

export const CHOICES = [
  { name: "arrivals", label: "Steady part is", options: [["even", "evenly spaced"], ["random", "random"]] },
  { name: "retry", label: "Who is denied", options: [["none", "does not try again"], ["immediate", "tries again after the back-off"], ["backoff", "doubles the back-off each time"], ["jitter", "waits as told and a random part of the back-off"], ["retry_after", "waits exactly as told"]] },
];

export const TITLES = {
  token_bucket: "Token bucket", leaky_bucket: "Leaky bucket", fixed_window: "Fixed window",
  sliding_window: "Sliding window", sliding_log: "Sliding log", concurrency: "Concurrency",
};

export const NOTES = {
  token_bucket: "admits its burst at once, then at the rate",
  leaky_bucket: "a queue: what comes at once goes out evenly, late",
  fixed_window: "counts from full second to full second, or minute",
  sliding_window: "weighs the window before: two counts, an estimate",
  sliding_log: "remembers each admission: exact, and dear",
  concurrency: "so many in flight; here each lasts one period",
};

/** The choice, as the project's README has it. */
export const CHOICE = {
  token_bucket: "clients may burst and then keep a steady rate: most APIs. Against one abuser: one for each client.",
  leaky_bucket: "the backend wants an even flow, and a client can wait: a spike of jobs goes through one after the other.",
  fixed_window: "a quota per calendar minute or month that users can reason about, and twice the limit around a boundary does no harm.",
  sliding_window: "as a fixed window, without the double burst; the window before is estimated.",
  sliding_log: "the last period must be exact to the request, and limits are small.",
  concurrency: "what counts is how many are under way, not how many came: slow requests, a pool of connections. (Here each is under way for one period, which makes it look like a log.)",
};
