// A log, asked of the rules, beside the page: it stays usable while a million lines pass here.
//
// in:  { rules, source, options }, where source is { sample: true }, { text } or { file }; one at a
//      time. To cancel, the page ends the worker.
// out: { lines, bytes, size } now and then; at last { report, json, csv, lines, ms }, or { error },
//      with { errors } when the rules are wrong

import init, { Replay } from "../../pkg/full.js";
import { sampleLog } from "./sample-log.js";

/** ms between two words to the page. */
const PAUSE = 100;
const TOP = 50;

const ready = init();

self.onmessage = async ({ data: { rules, source, options } }) => {
  await ready;
  let replay = null;
  try {
    replay = new Replay(rules, options);
    const blob = source.file ?? new Blob([source.sample ? sampleLog() : source.text]);
    const started = performance.now();
    await read(blob, replay);
    replay.finish();
    const told = { report: replay.report(TOP), json: replay.json(TOP), csv: replay.csv(TOP) };
    self.postMessage({ ...told, lines: replay.lines, ms: performance.now() - started });
  } catch (error) {
    self.postMessage({ error: error.message, errors: error.errors });
  } finally {
    replay?.free();
  }
};

async function read(blob, replay) {
  const size = blob.size;
  let bytes = 0;
  const counted = new TransformStream({
    transform(chunk, controller) {
      bytes += chunk.length;
      controller.enqueue(chunk);
    },
  });
  const magic = new Uint8Array(await blob.slice(0, 2).arrayBuffer());
  const isGzip = magic[0] === 0x1f && magic[1] === 0x8b;
  let stream = blob.stream().pipeThrough(counted);
  if (isGzip) {
    stream = stream.pipeThrough(new DecompressionStream("gzip"));
  }
  const reader = stream.getReader();
  let told = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) {
      return;
    }
    const lines = replay.push(value);
    if (performance.now() - told >= PAUSE) {
      told = performance.now();
      self.postMessage({ lines, bytes, size });
    }
  }
}
