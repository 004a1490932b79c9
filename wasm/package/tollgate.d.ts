// "tollgate-lab": what is loaded first. Limits, buckets, and many keys in fixed memory.

import { Decision, Limit, ModuleSource, Nanos } from './common.js';
export * from './common.js';

/**
 * Loads the module; without an argument from beside this file. To be awaited once, in a browser or a worker, before
 * all else. In Node it is loaded already, and this does nothing.
 */
export default function init(from?: { module_or_path: ModuleSource }): Promise<unknown>;

/** Many keys in fixed memory: the table of the gateways. */
export class Limiter {
  /** capacity: keys, 1 .. 4,194,304 (16 bytes each). rows: keys of logs and of concurrency, of rowEntries units each. */
  constructor(capacity: number, options?: { rows?: number; rowEntries?: number });
  check(key: string | Uint8Array, limit: Limit, now: Nanos, cost?: number): Decision;
  peek(key: string | Uint8Array, limit: Limit, now: Nanos, cost?: number): Decision;
  refund(key: string | Uint8Array, limit: Limit, cost: number, chargedAt: Nanos): void;
  /** concurrency; hold 0n: none */
  acquire(key: string | Uint8Array, limit: Limit, now: Nanos, cost?: number): Decision & { hold: bigint };
  release(hold: bigint): boolean;
  stats(now: Nanos): LimiterStats;
  /** The keys denied most, by the sketch that gateways use: of 64 places; count is too high by at most error. */
  top(count?: number): { key: string; count: number; error: number }[];
  free(): void;
}
export interface LimiterStats { capacity: number; bytes: number; used: number; live: number; evictions: number;
  rows: number; rowsUsed: number; rowEvictions: number; allowed: number; rejected: number; delayed: number }
