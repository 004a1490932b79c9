// What a number may be: one rule for the fields, for addresses, and for what is said of either.

/**
 * @typedef {{ min: number, max: number, integer?: boolean, gap?: number }} Range
 *   whole numbers only unless `integer` is false; with a `gap`, 0 is legal, and from there on nothing below it
 */

/** @param {Range} range */
export function isLegal({ min, max, integer = true, gap = 0 }, number) {
  return Number.isFinite(number) && number >= min && number <= max
    && (!integer || Number.isInteger(number)) && (number === 0 || number >= gap);
}

/** "a whole number from 1 to 1,000" */
export function legal({ min, max, integer = true, gap = 0 }) {
  const kind = integer ? "a whole number" : "a number";
  return `${gap > 0 ? "0 or " : ""}${kind} from ${gap > 0 ? gap : min} to ${max.toLocaleString("en")}`;
}
