// Node has no fetch of files: the module is read here, once, so that nothing has to be awaited.
import { readFileSync } from 'node:fs';
import { initSync } from './tollgate.js';

initSync({ module: readFileSync(new URL('./tollgate_bg.wasm', import.meta.url)) });
export * from './tollgate.js';
/** There is nothing left to do; here so that the same program runs in a browser. */
export default async function init() {}
