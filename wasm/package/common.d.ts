// Limits and buckets, which all three modules have.
//
// Time is nanoseconds as a bigint: a vector or a law is exact, and a number is not beyond 104 days. Whatever is not
// legal throws an Error whose message says what, where and the legal range; the object stays usable. Objects own
// memory of their module: free() them, or leave them to the garbage collector. Each module has a memory of its own:
// a Limit of one is not a Limit of another, but its text and its fields are.

/** The module itself: a place, its bytes, or compiled already. */
export type ModuleSource = string | URL | Request | Response | BufferSource | WebAssembly.Module;
export type Nanos = bigint;                       // 0n .. 2n**64n-1n
export function never(): Nanos;                   // 2n**64n-1n: what retryAfter is when no waiting helps
export type Algorithm = 'token_bucket' | 'leaky_bucket' | 'fixed_window' | 'sliding_window' | 'sliding_log' | 'concurrency';
export function algorithms(): Algorithm[];        // all six, in the order of the documents
export type Anchor = 'clock' | 'first_request';
export type HeaderFamily = 'off' | 'x-ratelimit' | 'ratelimit-03' | 'ratelimit';
export type Header = [name: string, value: string];

/** A limit as a rules file has it. */
export interface LimitSpec { rate: string; burst?: number; algorithm?: Algorithm; anchor?: Anchor | 'calendar_month' }

export interface Decision {
  allowed: boolean;
  limit: number;          // units per period
  remaining: number;      // whole units admissible now, after this request
  retryAfter: Nanos;      // 0n when allowed; never() when cost > burst
  resetAfter: Nanos;      // until the bucket is full, the window empty
  delay: Nanos;           // leaky bucket: how long an admitted request waits for its turn
}

/** A legal limit. Its fields make it a LimitSpec as well. */
export class Limit {
  /** "100/s burst 200", "leaky_bucket 10/s", "fixed_window 5/m anchor first_request"; algorithm: where the text names none. */
  constructor(limit: string | LimitSpec | Limit, algorithm?: Algorithm);
  readonly algorithm: Algorithm;
  readonly rate: string;                          // "100/s"
  readonly limit: number; readonly period: Nanos; readonly burst: number;
  readonly anchor: Anchor | 'calendar_month';
  readonly memory: number;                        // bytes that one key of it takes in a gateway's table
  withAlgorithm(algorithm: Algorithm): Limit;     // the same numbers; a burst stays only where there is one
  withBurst(burst: number): Limit;
  withAnchor(anchor: Anchor): Limit;
  toString(): string;                             // round trip with the constructor
  free(): void;
}

/** What is stored of a bucket, and what the lazy refill makes of it at `now`. Bigints are exact, numbers are for drawing. */
export interface BucketState {
  algorithm: Algorithm;
  now: Nanos;                                     // the instant it is reckoned for: never before the last charge
  latest: Nanos;                                  // the last instant at which something was charged
  // token_bucket, leaky_bucket: one instant is all that is stored, and a part of a nanosecond
  tat?: Nanos;                                    // stored: when the bucket is full (queue: empty) again; 0n: never used
  tatPart?: number;                               // stored: on top of tat, so many of tatParts parts of a nanosecond
  tatParts?: number;
  // tokens (leaky: level) = numerator / denominator exactly; gained: since `latest`
  tokensNumerator?: bigint; tokensDenominator?: bigint; tokens?: number;   // token_bucket
  levelNumerator?: bigint; levelDenominator?: bigint; level?: number;      // leaky_bucket
  // fixed_window, sliding_window
  windowStart?: Nanos; windowEnd?: Nanos; current?: number;
  previous?: number;                              // sliding_window
  weight?: number;                                // sliding_window: how much of the previous window still counts, 0 .. 1
  estimate?: number;                              // sliding_window: previous x weight + current
  // sliding_log: entries in the window, the oldest first (at most 1000 are listed); concurrency: holds in flight
  used?: number;
  entries?: BigUint64Array;                       // sliding_log: when each was admitted; concurrency: when each hold expires
}

export class Bucket {
  constructor(limit: string | LimitSpec | Limit);
  check(now: Nanos, cost?: number): Decision;     // cost 1 by default; 0 .. 2^32-1; 0 reads
  peek(now: Nanos, cost?: number): Decision;      // what check would say; changes nothing
  refund(cost: number, chargedAt: Nanos): void;
  /** concurrency: as check, and the hold to release; 0n: none. A check holds as well, until it expires. */
  acquire(now: Nanos, cost?: number): Decision & { hold: bigint };
  release(hold: bigint): boolean;                 // false: it had ended already
  setLimit(limit: string | LimitSpec | Limit, now: Nanos): void;  // buckets keep what was spent; others begin anew
  state(now: Nanos): BucketState;
  reset(): void;
  readonly limit: Limit;                          // a new object each time
  readonly memory: number;                        // bytes that one key of this limit takes in a gateway's table
  /** Many requests, in order: for simulations. allowed[i] is 1 or 0. costs: one for each, or 1 for all. */
  checkAll(times: BigUint64Array, costs?: Uint32Array): { allowed: Uint8Array; delay: BigUint64Array; retryAfter: BigUint64Array; remaining: Uint32Array };
  free(): void;
}

/** The header fields of an answer, as a gateway writes them; Retry-After comes with a denial. */
export function headers(name: string, limit: Limit, decision: Decision, family?: HeaderFamily): Header[];   // default x-ratelimit
/** The application/problem+json body of a denial; '' when it was allowed. */
export function problem(name: string, limit: Limit, decision: Decision, status?: number): string;         // default 429
