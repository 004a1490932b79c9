// "tollgate-lab/full": all of it. Rules files, the replay of logs, and a simulated cluster as well.

import { Decision, Header, Nanos } from './common.js';
export * from './tollgate.js';
export * from './compare.js';
export { default } from './tollgate.js';

export interface RuleError { line: number; column: number; path: string; message: string }   // line, column from 1; column in characters
export interface RulesErrorObject extends Error { name: 'RulesError'; errors: RuleError[] }    // what the constructors throw
export interface HttpRequest { path: string; method?: string; host?: string; route?: string; peer?: string; headers?: Record<string, string> }
export interface PolicyAnswer {
  policy: string; key: { part: string; value: string }[]; limit: string; isOverride: boolean; isDryRun: boolean; cost: number;
  outcome: 'admitted' | 'denied' | 'would_deny' | 'spared'; decision: Decision; isTightest: boolean }
export interface Considered {
  policy: string; applies: boolean; whyNot: string[];           // as `tollgate rules explain` tells it
  missingHeader: string | null; key: { part: string; value: string }[]; limits: string[]; isOverride: boolean; cost: number;
  store: 'local' | 'redis'; isDryRun: boolean; hasPenalty: boolean; notices: string[] }
export interface Answer {
  allowed: boolean;
  status: number;                                 // 200, the rules' status of a denial, or 401
  headers: Header[];                              // what a gateway adds to the response
  body: string | null;                            // application/problem+json
  client: string | null;                          // the address that counts as the client's
  missingHeader: string | null;                   // 401: the header field that is missing
  delay: Nanos;
  policies: PolicyAnswer[];                       // one for each limit that was asked, in file order; [] with a 401
  considered: Considered[];                       // every policy of the file
}
export interface PolicyInfo { name: string; key: string[]; limits: string[]; overrides: number; store: 'local' | 'redis';
  onStoreError: 'local' | 'allow' | 'deny'; isDryRun: boolean; hasPenalty: boolean; isDefault: boolean }

export class Rules {
  constructor(text: string, options?: { capacity?: number });   // keys, default 65,536; throws a RulesErrorObject
  static errors(text: string): RuleError[];                      // [] when legal; in the order of the text
  notices(hasStore?: boolean): { policy: string; message: string }[];   // legal, and without effect; default true
  policies(): PolicyInfo[];
  readonly headers: string[];                                    // header fields that the rules look at, in lower case
  check(request: HttpRequest, now: Nanos): Answer;               // counts, in a table of its own, as a gateway would
  explain(request: HttpRequest): Considered[];                   // counts nothing
  reset(): void;                                                 // forgets all counts
  free(): void;
}

export interface ReplayOptions {
  format?: 'auto' | 'combined' | 'json' | 'csv';  // default auto
  capacity?: number;      // keys at the same time, default 262,144
  buckets?: number;       // spans of time at most: 1 .. 10,000, default 60
  route?: string; host?: string;                  // where the log does not tell
}
/** Works in a Web Worker; gzip is undone before (DecompressionStream). */
export class Replay {
  constructor(rules: string, options?: ReplayOptions);           // throws a RulesErrorObject
  push(bytes: Uint8Array): number;                // lines so far; a log may be cut anywhere. Throws when it is no log
  finish(): void;                                 // the end of the log
  report(top?: number): ReplayReport;             // at any time: while it runs, too. top: keys, default 10
  json(top?: number): string;                     // what `tollgate replay --format json` prints
  csv(top?: number): string;                      // what `tollgate replay --format csv` prints
  readonly lines: number;
  free(): void;
}
/** = JSON.parse(json()) */
export interface ReplayReport {
  requests: number; admitted: number; denied: number; unidentified: number; unlimited: number; logged_429: number;
  first: string | null; last: string | null;      // ISO 8601
  policies: { name: string; requests: number; admitted: number; denied: number; denied_by_others: number; would_deny: number; unidentified: number }[];
  keys: { policy: string; key: { part: string; value: string }[]; denied: number; error: number; admitted: number; exact: boolean }[];
  bucket_seconds: number;
  buckets: { time: string; admitted: number; denied: number; unidentified: number }[];
  faults: { unreadable: number; first_unreadable: { line: number; reason: string }[]; out_of_order: number; first_out_of_order: number[] };
  evictions: number;
  notes: string[];                                // sentences: what the reader should know
}

export interface ClusterSettings {                // all of it may change while it runs, by set()
  limit?: string;         // of each key: "100/s", any algorithm; default "100/s"
  lease?: number;         // units fetched ahead at most, 0: none .. 10000; default 10
  leaseTtl?: number;      // ms, 1 .. 3,600,000; default 1000
  timeout?: number;       // ms that a request waits for Redis, 1 .. 10,000; default 5
  onStoreError?: 'local' | 'allow' | 'deny';
  breaker?: { failures?: number; window?: number; openFor?: number; maxOpen?: number };  // ms; default 5, 10000, 100, 500
  offered?: number;       // requests a second of all instances together, 0 .. 50,000; default 300
  shape?: 'steady' | 'random' | 'bursts';         // evenly spaced; drawn; all of a second in its first tenth
  keys?: number;          // 1 .. 10,000; default 1
  spread?: 'even' | 'zipf';                       // how requests fall upon keys; default even
  latency?: number; jitter?: number;              // ms, one way; default 0.25, 0.25
  loss?: number;          // 0 .. 1 of calls, and of replies
}
export interface ClusterOptions extends ClusterSettings {
  instances?: number;     // 1 .. 200; default 20
  seed?: number;
}
export interface ClusterSample {
  // of this step
  now: number;            // ms of virtual time since the start
  offered: number;
  admitted: number; denied: number;               // answers given in this step
  asked: number; lease: number; denial: number; fallback: number;   // by whom: Redis, a lease, a denial in memory, on_store_error
  calls: number;          // calls that were sent to Redis
  timeouts: number; failures: number;             // of calls
  p50: number; p99: number; max: number;          // ms that the answers of this step were waited for; 0 when there is none
  waiting: number;        // requests that wait now
  held: number;           // units of leases fetched and not spent, now
  isOut: boolean;         // is an outage on, now?
  breakers: Uint8Array;   // of each instance, now: 0 closed, 1 half-open, 2 open
  byInstance: { admitted: Uint32Array; denied: Uint32Array };
  // since the start; the law: hottest.admitted <= hottest.allowed while Redis is well and forgets nothing
  total: { offered: number; admitted: number; denied: number; asked: number; lease: number; denial: number; fallback: number; calls: number;
    /** burst + limit x time of all keys together */
    allowed: number };
  hottest: { key: number; offered: number; admitted: number; allowed: number };
}
export class Cluster {
  constructor(options?: ClusterOptions);
  step(ms: number): ClusterSample;                 // 0.001 .. 1000 ms of virtual time
  set(settings: ClusterSettings): void;            // from now on; what is not given stays
  readonly settings: Required<ClusterSettings>;    // all that is in force
  readonly instances: number;
  /** Redis is away from now on: 'refused' nobody listens (default), 'lost' the network is cut, 'failing', 'stopped'. ms: for so long; without it until heal(). instance: for that one alone. */
  outage(kind?: 'refused' | 'lost' | 'failing' | 'stopped', ms?: number, instance?: number): void;
  heal(): void;
  flush(): void;                                   // Redis forgets all counts
  free(): void;
}
