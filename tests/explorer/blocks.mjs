// Encodes blocks of the page the way its format describes: LEB128 numbers in columns.

function push(out, value) {
  if (!Number.isSafeInteger(value) || value < 0) throw new RangeError(`not a number of a block: ${value}`);
  while (value > 127) {
    out.push((value % 128) + 128);
    value = Math.floor(value / 128);
  }
  out.push(value);
}

/** Encodes rows of equal length as columns: their number first, then one column after the other. */
export function encodeRows(rows, width = rows[0]?.length ?? 0) {
  const out = [];
  push(out, rows.length);
  for (let c = 0; c < width; c++) for (const row of rows) push(out, row[c]);
  return Uint8Array.from(out);
}

export const zigzag = (value) => (value < 0 ? -2 * value - 1 : 2 * value);

/** Replaces one column of rows by differences, with a sign where `signed`. */
export function takeDifferences(rows, column, signed = true) {
  let last = 0;
  return rows.map((row) => {
    const difference = row[column] - last;
    last = row[column];
    return row.map((value, c) => (c === column ? (signed ? zigzag(difference) : difference) : value));
  });
}

/** A generator of numbers in [0, 1) that repeats itself for a seed. */
export function makeRandom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}
