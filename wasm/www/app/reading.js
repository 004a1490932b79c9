// The state of a section, as an address has it. Anybody may have written it: what is not understood is as
// if it were not there, and is kept here, to be told once and taken out of the address.

import { isLegal, legal } from "../sections/common/range.js";

/** Characters that are quoted of what somebody wrote. */
const QUOTED = 24;

export class Reading {
  #left;
  #wrong = [];

  /** @param {Record<string, string>} state */
  constructor(state) {
    this.state = { ...state };
    this.#left = new Set(Object.keys(state));
  }

  /** The text that a name has, or undefined. */
  text(name) {
    this.#left.delete(name);
    return this.state[name];
  }

  /** @param {import("../sections/common/range.js").Range} range */
  number(name, range, other) {
    const text = this.text(name);
    const number = Number(text || NaN);
    if (text === undefined || isLegal(range, number)) {
      return text === undefined ? other : number;
    }
    this.refuse(name, `is not ${legal(range)}`);
    return other;
  }

  oneOf(name, all, other) {
    const text = this.text(name);
    if (text === undefined || all.includes(text)) {
      return text ?? other;
    }
    this.refuse(name, `is none of ${all.map((one) => one || "nothing").join(", ")}`);
    return other;
  }

  /** What a name has is not understood; `rest` of it is. */
  refuse(name, why, rest) {
    this.#wrong.push(`“${name}=${quoted(this.state[name])}” ${why}`);
    delete this.state[name];
    if (rest) {
      this.state[name] = rest;
    }
  }

  /** All that was not understood, and names that nobody asked for. */
  wrong() {
    for (const name of this.#left) {
      this.#wrong.push(`“${quoted(name)}” means nothing here`);
      delete this.state[name];
    }
    this.#left.clear();
    return this.#wrong;
  }
}

const quoted = (text) => (text.length > QUOTED ? `${text.slice(0, QUOTED)}…` : text);
