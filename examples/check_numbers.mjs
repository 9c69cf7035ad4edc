// Checks the test vectors of `docs/formats/numbers.md` with nothing but Node's own modules.
//
//     node examples/check_numbers.mjs docs/formats/numbers-v1.json
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { strict as assert } from "node:assert";

const NUMBER = /^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$/;
const isInteger = (text) => /^-?[0-9]+$/.test(text);

// The significant digits of a number, without zeros at either end.
const digits = (text) =>
  text.split(/[eE]/)[0].replace(/[^0-9]/g, "").replace(/^0+|0+$/g, "");

function isKept(text) {
  if (!NUMBER.test(text)) return false;
  if (isInteger(text)) return -(2n ** 63n) <= BigInt(text) && BigInt(text) < 2n ** 64n;
  const value = Number(text);
  return Number.isFinite(value) && digits(text) === digits(String(value));
}

function isKeptInArguments(text) {
  if (isInteger(text)) return isKept(text);
  const value = Number(text);
  return isKept(text) && !(Number.isInteger(value) && Math.abs(value) >= 2 ** 53);
}

// JSON.parse makes doubles of all integers, so the large ones become strings with a mark before.
const MARK = "\u0000integer:";
function read(text) {
  const token = /"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*/g;
  const marked = text.replace(token, (found) =>
    isInteger(found) && !Number.isSafeInteger(Number(found)) ? JSON.stringify(MARK + found) : found,
  );
  return JSON.parse(marked, (_, value) =>
    typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value,
  );
}

// RFC 8785 is the way JavaScript writes, with sorted names. Integers are their digits.
function canonical(value) {
  if (typeof value === "bigint") return value.toString();
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value !== null && typeof value === "object") {
    const names = Object.keys(value).sort();
    return `{${names.map((name) => `${JSON.stringify(name)}:${canonical(value[name])}`).join(",")}}`;
  }
  return JSON.stringify(value);
}

const vectors = JSON.parse(readFileSync(process.argv[2], "utf8"));
for (const { json, value, args, canonical: expected } of vectors.numbers) {
  assert.equal(isKept(json), value, json);
  assert.equal(value && isKeptInArguments(json), args, json);
  if (value) assert.equal(canonical(read(json)), expected, json);
}
for (const { hold_id, tool, args, canonical: expected, digest } of vectors.actions) {
  const written = canonical({ v: 1, hold_id, tool, args: read(args) });
  assert.equal(written, expected);
  assert.equal(createHash("sha256").update(written).digest("hex"), digest, written);
}
console.log(`${vectors.numbers.length} numbers and ${vectors.actions.length} actions hold`);
