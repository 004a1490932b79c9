// A program that uses all of the package, to be compiled under strict rules: are its types what it needs?

import init, { Bucket, Limit, Limiter, algorithms, headers, never, problem } from 'tollgate-lab';
import type { Algorithm, BucketState, Decision, Header, LimitSpec, Nanos } from 'tollgate-lab';
import { Traffic } from 'tollgate-lab/compare';
import type { TrafficOutcome } from 'tollgate-lab/compare';
import { Cluster, Replay, Rules } from 'tollgate-lab/full';
import type { Answer, ClusterSample, ReplayReport, RuleError } from 'tollgate-lab/full';

// Is it `any`? Then this is not assignable.
type IsAny<T> = 0 extends 1 & T ? true : false;
const isAny: {
  decision: IsAny<Decision[keyof Decision]>; state: IsAny<BucketState[keyof BucketState]>;
  outcome: IsAny<TrafficOutcome[keyof TrafficOutcome]>; answer: IsAny<Answer[keyof Answer]>;
  sample: IsAny<ClusterSample[keyof ClusterSample]>; report: IsAny<ReplayReport[keyof ReplayReport]>;
} = { decision: false, state: false, outcome: false, answer: false, sample: false, report: false };

export async function all(): Promise<unknown[]> {
  await init();
  const spec: LimitSpec = { rate: '100/s', burst: 200, algorithm: 'token_bucket' };
  const limit = new Limit(spec).withBurst(300);
  const names: Algorithm[] = algorithms();
  const now: Nanos = 1_000_000_000n;
  const bucket = new Bucket(limit);
  const decision: Decision = bucket.check(now, 2);
  const fields: Header[] = headers('api', limit, decision, 'ratelimit');
  const { hold } = bucket.acquire(now);
  const isReleased: boolean = bucket.release(hold);
  const { allowed } = bucket.checkAll(new BigUint64Array([now]));
  const limiter = new Limiter(1024, { rows: 8, rowEntries: 10 });
  const wait: bigint = limiter.check('key', limit, now).retryAfter;
  const outcome = new Traffic({ preset: 'burst' }).play(spec, { key: 'client' });
  const errors: RuleError[] = Rules.errors('{}');
  const answer = new Rules('{}').check({ path: '/', headers: { a: 'b' } }, now);
  const replay = new Replay('{}', { format: 'csv' });
  const lines: number = replay.push(new Uint8Array());
  const cluster = new Cluster({ instances: 3 });
  cluster.set({ lease: 5 });
  cluster.outage('lost', 100);
  const { breakers }: { breakers: Uint8Array } = cluster.step(16);
  // @ts-expect-error time is a bigint
  bucket.check(1);
  // @ts-expect-error there is no such algorithm
  new Limit('1/s', 'leaky');
  return [names, fields, isReleased, allowed, wait === never(), outcome.worst, errors, answer.policies, lines, breakers,
    problem('api', limit, decision), replay.report().notes, isAny];
}
