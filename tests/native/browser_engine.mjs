// Draws pictures with the engine of an exported folder, without a browser: reads questions as JSON from standard input, and
// prints answers. node tests/browser_engine.mjs FOLDER VARIANT
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [, , folder, variant] = process.argv;
const { open } = await import(pathToFileURL(`${folder}/superres.js`));
let core;
const answers = JSON.parse(readFileSync(0, "utf8"));
try {
  core = await open(async name => new Uint8Array(readFileSync(`${folder}/${name}`)), variant && [variant]);
} catch (error) {
  console.log(JSON.stringify({ error: error.message }));
  process.exit();
}
const answered = answers.map(({ cells, way, drafting }) => {
  try {
    if (drafting) return [...core.draft(Uint8Array.from(cells), drafting)].at(-1);
    const pictures = [...core.upscale(Uint8Array.from(cells), way)], last = pictures.at(-1);
    return {
      ...last, pixels: Array.from(last.pixels), pictures: pictures.length, beginning: pictures.every(({ stage, side, pixels, tokens }, at) =>
        pixels.length === 3 * side ** 2 && pixels.subarray(tokens).every(value => value === 0) &&
        !(pictures[at + 1]?.stage === stage && pictures[at + 1].tokens <= tokens)),
      stages: last.stages.map(({ pixels, ...stage }) => stage) };
  } catch (error) {
    return { error: `${error.name}: ${error.message}` };
  }
});
console.log(JSON.stringify({ info: core.info, answers: answered }));
