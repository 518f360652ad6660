// What the paint box does with emoji squares and the face of the day, without a browser: reads faces as lists of numbers
// from standard input, and prints answers. node tests/web/emoji.mjs FOLDER, which has base.js and emoji.js
import { readFileSync } from "node:fs";
import { runInThisContext } from "node:vm";

Object.assign(globalThis, { window: globalThis, HTMLElement: class {} });
for (const name of ["base", "emoji"]) runInThisContext(readFileSync(`${process.argv[2]}/${name}.js`, "utf8"));
const { emoji: { toEmoji, fromEmoji }, today } = globalThis.superres, side = 8;
const { faces, dates, texts } = JSON.parse(readFileSync(0, "utf8")), people = faces.map(face => Uint8Array.from(face));
const read = text => {
  const found = fromEmoji(text, side);
  return found && { ...found, values: found.values && Array.from(found.values) };
};
console.log(JSON.stringify({
  grids: people.map(face => toEmoji(face, side)), pasted: people.map(face => read(toEmoji(face, side))),
  again: people.map(face => toEmoji(fromEmoji(toEmoji(face, side), side).values, side)), texts: texts.map(read),
  days: dates.map(date => today(people, side, new Date(date))).map(({ date, values }) => [date, Array.from(values)]),
}));
