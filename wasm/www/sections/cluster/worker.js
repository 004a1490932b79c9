// The cluster: the real engine of each instance on a played network, in virtual time. It runs here,
// beside the page, at the pace that the page asks for.
//
// in:  { start: options, run, outageAt } makes a new one, whose number is `run`, and whose Redis is gone
//      after `outageAt` milliseconds, if that is given; { set: settings } changes
//      what may change while it runs; { outage } is how Redis is away, null when it is there;
//      { pace } is virtual milliseconds a real one, 0 stands; { skip } lets so many pass at once
// out: { samples, run } of STEP each; { error }

import init, { Cluster } from "../../pkg/full.js";

/** Milliseconds of virtual time in a sample. */
const STEP = 100;
/** How often the page is told, and how much of that time may be spent, in real milliseconds. */
const TICK = 50;
const BUDGET = 35;

const ready = init();
let cluster = null;
let number = 0;
let outageDue = Infinity;
let pace = 0;
let owed = 0;
let last = 0;

self.onmessage = async ({ data }) => {
  await ready;
  try {
    obey(data);
  } catch (error) {
    self.postMessage({ error: error.message, run: data.run ?? number });
  }
};

function obey({ start, run, outageAt, set, outage, pace: asked, skip }) {
  if (start) {
    cluster?.free();
    cluster = null;
    cluster = new Cluster(start);
    number = run;
    outageDue = outageAt ?? Infinity;
    owed = 0;
  }
  if (asked !== undefined) {
    pace = asked;
    last = performance.now();
    owed = 0;
  }
  if (!cluster) {
    return;
  }
  if (set) {
    cluster.set(set);
  }
  if (outage !== undefined) {
    outageDue = Infinity;
    cluster.heal();
    if (outage !== null) {
      cluster.outage(outage);
    }
  }
  if (skip) {
    self.postMessage({ samples: steps(skip / STEP, Infinity), run: number });
  }
}

setInterval(() => {
  if (!cluster || pace === 0) {
    return;
  }
  const now = performance.now();
  owed += (now - last) * pace;
  last = now;
  const samples = steps(Math.floor(owed / STEP), now + BUDGET);
  owed -= samples.length * STEP;
  if (performance.now() >= now + BUDGET) {
    owed = 0; // this machine does not keep up: time passes as fast as it can
  }
  if (samples.length > 0) {
    self.postMessage({ samples, run: number });
  }
}, TICK);

function steps(count, until) {
  const samples = [];
  for (let i = 0; i < count && performance.now() < until; i++) {
    const sample = cluster.step(STEP);
    samples.push(sample);
    if (sample.now >= outageDue) {
      outageDue = Infinity;
      cluster.outage("refused");
    }
  }
  return samples;
}
