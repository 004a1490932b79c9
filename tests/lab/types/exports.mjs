// usage: node exports.mjs PACKAGE
// Holds the declared classes, members and functions against what the modules export.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const home = process.argv[2];
const read = (name) => readFileSync(join(home, `${name}.d.ts`), "utf8").replace(/\/\*[^]*?\*\//g, "").replace(/\/\/.*$/gm, "");

/** Names of functions, and of classes with their members. */
function declared(text) {
  const found = {};
  for (const [, name] of text.matchAll(/^export function (\w+)/gm)) {
    found[name] = [];
  }
  for (const [, name, body] of text.matchAll(/^export class (\w+) \{([^]*?)^\}/gm)) {
    const members = body.matchAll(/(?:^  |; (?=readonly ))(static )?(?:readonly )?(\w+)(?=\(|: )/gm);
    found[name] = [...members].filter(([, , member]) => member !== "constructor").map(([, isStatic, member]) => `${isStatic ?? ""}${member}`).sort();
  }
  return found;
}

/** The same of a module; what wasm-bindgen adds for itself is not counted. */
function exported(module) {
  const found = {};
  const own = (names) => names.filter((name) => !/^(constructor|__|length$|name$|prototype$)/.test(name));
  for (const [name, value] of Object.entries(module).filter(([name]) => !["default", "initSync"].includes(name))) {
    const members = value.prototype?.constructor === value && /^[A-Z]/.test(name)
      ? [...own(Object.getOwnPropertyNames(value.prototype)), ...own(Object.getOwnPropertyNames(value)).map((member) => `static ${member}`)]
      : [];
    found[name] = members.sort();
  }
  return found;
}

const common = declared(read("common"));
const [tollgate, compare, full] = ["tollgate", "compare", "full"].map((name) => declared(read(name)));
for (const [node, types] of [
  ["node.js", { ...common, ...tollgate }],
  ["node-compare.js", { ...common, ...compare }],
  ["node-full.js", { ...common, ...tollgate, ...compare, ...full }],
]) {
  const module = await import(pathToFileURL(join(home, node)));
  const found = exported(module);
  delete found.RulesErrorObject;
  assert.deepEqual(found, types, node);
}
