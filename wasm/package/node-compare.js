// Node has no fetch of files: the module is read here, once, so that nothing has to be awaited.
import { readFileSync } from 'node:fs';
import { initSync } from './compare.js';

initSync({ module: readFileSync(new URL('./compare_bg.wasm', import.meta.url)) });
export * from './compare.js';
/** There is nothing left to do; here so that the same program runs in a browser. */
export default async function init() {}
