// "tollgate-lab/compare": limits, and traffic to compare them by. It is drawn from a seed, so the same each time, and
// closed-loop: clients that are denied may come again.

import { Algorithm, Limit, LimitSpec, ModuleSource } from './common.js';
export * from './common.js';

/**
 * Loads the module; without an argument from beside this file. To be awaited once, in a browser or a worker, before
 * all else. In Node it is loaded already, and this does nothing.
 */
export default function init(from?: { module_or_path: ModuleSource }): Promise<unknown>;

export type Preset = 'steady' | 'burst' | 'window_boundary' | 'retry_storm' | 'retry_jitter' | 'cron_spike' | 'abuser';
export type Retry = 'none' | 'immediate' | 'backoff' | 'jitter' | 'retry_after';
export interface TrafficOptions {
  preset?: Preset;      // fills in all that is not given; 'steady'
  seconds?: number;     // 1 .. 3600
  rate?: number;        // first attempts a second of the steady part, of all clients together: 0 .. 10000
  clients?: number;     // 1 .. 1000
  arrivals?: 'even' | 'random';   // how the steady part is spaced
  burst?: number;       // first attempts of each burst: 0 .. 100000
  every?: number;       // seconds from one burst to the next; 0: one burst only
  at?: number;          // seconds until the first burst, 0 .. 3600
  spread?: number;      // seconds over which a burst is spread, 0 .. 60, drawn evenly
  pair?: boolean;       // a burst before and one behind each such instant, each spread over `spread`: around a window's boundary
  abuser?: number;      // first attempts a second of client 0 alone, on top
  retry?: Retry;        // what a client does that is denied
                        // immediate: after `backoff` ms, always; backoff: that, doubled each time; jitter: a time drawn from 0 to
                        // that, after retryAfter; retry_after: when the answer said
  backoff?: number;     // ms, 1 .. 60,000
  attempts?: number;    // most attempts of one request, the first among them: 1 .. 100
  seed?: number;        // 0 .. 2^53-1
}
export interface TrafficOutcome {
  limit: string; algorithm: Algorithm; memory: number;   // bytes of one key
  keys: number;
  step: number;                                   // seconds of one step of the series
  offered: Uint32Array; admitted: Uint32Array; denied: Uint32Array;   // by step, of attempts
  delayed: Uint32Array;                           // of the admitted those that had to wait
  maxDelay: Float64Array;                         // by step, ms
  totals: { requests: number; attempts: number; admitted: number; denied: number; retries: number; gaveUp: number; delayed: number };
  delay: { p50: number; p99: number; max: number };     // ms that admitted requests were told to wait
  wait: { p50: number; p99: number; max: number };      // ms from the first attempt to its turn, of requests admitted at last
  /** the most that one key was admitted in any period of the limit, and in how much of it: the 2x of a fixed window */
  worst: { admitted: number; from: number };      // from: seconds
  byClient: { admitted: Uint32Array; denied: Uint32Array };
  /** every attempt, while there are at most 20,000; else the first 20,000. outcome: 0 denied, 1 admitted, 2 admitted with a delay */
  events: { seconds: Float64Array; client: Uint32Array; outcome: Uint8Array };
}
export class Traffic {
  constructor(options?: TrafficOptions);
  readonly options: Required<TrafficOptions>;     // all that is in force
  readonly requests: number;                      // first attempts
  /** Plays it through one limit. key: do all share one bucket, or has each client its own? Default 'all'. steps: 10 .. 2000, default 300 */
  play(limit: string | LimitSpec | Limit, options?: { key?: 'all' | 'client'; steps?: number }): TrafficOutcome;
  free(): void;
}
