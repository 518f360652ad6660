// What the chips of the paint box do with pixels, without a browser: reads [edit, pixels, number] from standard input as
// lists, with the drawn people, and prints the new pixels. node tests/web/edits.mjs FOLDER, which has base.js and edits.js
import { readFileSync } from "node:fs";
import { runInThisContext } from "node:vm";

Object.assign(globalThis, { window: globalThis, HTMLElement: class {} });
for (const name of ["base", "edits"]) runInThisContext(readFileSync(`${process.argv[2]}/${name}.js`, "utf8"));
const { edits: { names, apply, surprise } } = globalThis.superres, { side, people, questions } = JSON.parse(readFileSync(0, "utf8"));
const known = people.map(one => Uint8Array.from(one));

// Return numbers in [0, 1) that look random.
function randomOf(seed) {
  let state = 7919 * seed + 1;
  return () => (state = state * 48271 % 2147483647) / 2147483647;
}

const answered = ([name, values, seed]) => name === "Surprise me" ? surprise(known, side, randomOf(seed)) : apply(name, Uint8Array.from(values), side, known);
console.log(JSON.stringify({ names, edited: questions.map(one => Array.from(answered(one))) }));
