// The engine in the browser: draws larger pictures from a few pixels, in blocks, on one thread of WebAssembly.
// One module for the window (`load`), its Worker (this module again) and node (`open`). cpp/native.cpp does the decoding.

/**
 * @typedef {object} Way - how tokens are chosen and accepted: see `superres upscale --help`
 * @property {"exact"|"distance"|"top-k"} [accept] - exact gives the picture of one token per step
 * @property {number} [epsilon] - largest accepted difference in grey levels, for "distance"; 2 by default
 * @property {number} [topK] - rank within which "top-k" accepts; 2 by default
 * @property {number} [blockSize] - tokens proposed per step; 0 stands for the fastest one with exact acceptance, by the recorded costs of WebAssembly, else all heads
 * @property {number} [temperature] - 0 draws the likeliest picture
 * @property {number} [seed] - of the noise of samples
 * @property {number} [sample] - 1, 2, ...: the number of the sample
 * @property {number} [size] - side of the picture in pixels: that of a stage's output, by default the last one's
 * @property {"none"|"mean"|"sharp"} [finish] - none by default; mean averages the pictures of the input and of the mirrored input, sharp three samples; both sharpen
 *
 * @typedef {object} Stage - a complete decode of a stage; finishing needs several of the first stages
 * @property {number} side - of its output in pixels
 * @property {Uint8Array} pixels - RGB, row by row
 * @property {number} tokens
 * @property {number} steps - decoding iterations
 * @property {number[]} accepted - tokens accepted in each step
 * @property {number[][]} proposed - proposals of each step
 * @property {boolean} [isMirrored] - whether it is that of the mirrored input, and mirrored as that is
 *
 * @typedef {object} Picture
 * @property {number} stage - 0, 1, ...: the decode under way, of `stages`
 * @property {number} side - of the stage's output in pixels
 * @property {Uint8Array} pixels - RGB, row by row; 0 where nothing is decoded yet
 * @property {number} tokens - decoded so far in this stage
 * @property {number} steps - decoding iterations so far in this stage
 * @property {boolean} complete - whether it is the last one
 * @property {number} seconds - of computing
 * @property {boolean} [isMirrored] - whether it is that of the mirrored input, and mirrored as that is
 * @property {string} [digest] - of the complete picture: the first 12 digits of the SHA-256 of its pixels
 * @property {Stage[]} [stages] - of the complete picture: all decodes that it needed, in their order; the last one's pixels are those before sharpening
 *
 * @typedef {object} Drafting - what is drafted: the first stage's picture, verified while somebody else proposes
 * @property {Uint8Array} [tokens] - those that earlier calls committed: pixel values in the order of a picture's
 * @property {"heads"|"left"|number[]} [by] - who proposes: the prediction heads, the pixel on the left, or these guesses
 * @property {number} [epsilon] - largest accepted difference in grey levels
 * @property {number} [blockSize] - tokens of a call: the model's next one, and guesses
 * @property {number} [calls] - at most
 *
 * @typedef {object} Drafted
 * @property {number[]} accepted - tokens accepted in each call
 * @property {number[]} tokens - those that the calls committed
 * @property {number[]} pending - the model's next token, and the heads' proposals after it; none at the end
 * @property {number} seconds - of the calls
 * @property {boolean} complete - whether these are all calls
 */

import {DRAWN, drawingsOf, meanOf, sharpened} from "./finish.js";
import {CHANNELS, INTENSITIES, StageMemory, digestOf, imageKey, stageKey} from "./stage.js";

export const VERSION = "0.1.0";  // of the release; the page and the Worker's folder are of the same one
export const NOTE = "invented detail, not a likeness; never use it to identify anyone";
const FORMAT = 2;
const VARIANTS = ["wasm32-relaxed", "wasm32"];  // the fastest first
const SLICE = 0.02, FRAME = 0.1;  // seconds of computing between two looks at messages, and between two pictures
const DEFAULTS = {accept: "exact", epsilon: 2, topK: 2, blockSize: 0, temperature: 0, seed: 0, sample: 1, finish: "none"};
const PATIENCE = 30_000;  // milliseconds without a byte, after which a download has failed
const seconds = () => performance.now() / 1000;

/** The engine without a Worker. */
class Core {
  constructor(about, stages, variant, bytes) {
    Object.assign(this, {about, stages});
    this.info = {checkpoint: about.checkpoint, revision: about.revision, digest: about.digest, mark: about.mark, variant, bytes, stages: about.stages.map(
      ({source, target, heads}) => ({source, target, blockSize: heads}))};
  }

  /** Check a way, and return it with the values that it leaves out. */
  complete(cells, given) {
    const way = {...DEFAULTS, size: this.about.stages.at(-1).target, ...given}, {source} = this.about.stages[0];
    const whole = (name, least) => [name, Number.isSafeInteger(way[name]) && way[name] >= least, `a whole number from ${least} on`];
    const finishes = ["none", ...Object.keys(DRAWN)];
    const checks = [["accept", ["exact", "distance", "top-k"].includes(way.accept), "exact, distance or top-k"], whole("epsilon", 0),
      whole("topK", 1), whole("blockSize", 0), whole("seed", 0), whole("sample", 1),
      ["temperature", way.temperature === 0 || way.temperature >= 0.01, "0, or at least 0.01"],
      ["finish", finishes.includes(way.finish), "none, mean or sharp"],
      ["temperature", way.temperature === 0 || way.finish === "none", "0 with finish, which draws at temperatures of its own"],
      ["size", this.about.stages.some(({target}) => target === way.size), this.about.stages.map(({target}) => target).join(" or ")]];
    for (const [name, isValid, wanted] of checks) if (!isValid) throw new RangeError(`${name} is ${way[name]}; give ${wanted}`);
    if (cells.length !== source ** 2 * CHANNELS) throw new RangeError(`${cells.length} values were given; the input has ${source}x${source} pixels of ${CHANNELS}`);
    return way;
  }

  /**
   * Decode, and yield pictures at least once per slice of time; the last one is complete.
   * @param {Uint8Array} cells - the pixels of the input, RGB, row by row
   * @param {Way} given
   * @returns {Generator<Picture>}
   */
  *upscale(cells, given = {}) {
    const way = this.complete(cells, given), end = 1 + this.stages.findIndex(({about}) => about.target === way.size);
    const made = {stages: [], seconds: 0}, key = imageKey(cells, way.sample);
    let pixels;
    if (way.finish === "none") pixels = yield* this.draw(cells, key, way, [0, end], made);
    else {
      pixels = yield* this.average(cells, way, Math.max(end - 1, 1), made);
      if (end > 1) {
        yield pictureOf(made, pixels);
        pixels = yield* this.draw(pixels, key, way, [end - 1, end], made);
      }
      pixels = sharpened(pixels, cells);
    }
    yield {...pictureOf(made, pixels), complete: true, digest: digestOf(pixels), stages: made.stages};
  }

  /** Draw by the stages `begin` up to `end`, each from the picture of the one before; return the last picture, and add the decodes to `made`. */
  *draw(source, key, way, [begin, end], made) {
    const seen = way.isMirrored ? {isMirrored: true} : {};
    for (const [at, memory] of this.stages.slice(begin, end).entries()) {
      if (at) yield {...pictureOf(made, source), ...seen};
      const {target: side} = memory.about, stage = made.stages.length, accepted = [], proposed = [];
      let tokens = 0, count = 1, started = seconds();
      memory.begin(source, stageKey(key, begin + at), way, this.about.rules);
      while (tokens < memory.length) {
        for (const [position, length, ...proposals] of memory.iterate(count)) {
          if (position < 0) continue;  // the start of the sequence
          accepted.push(length);
          proposed.push(proposals);
          tokens += length;
        }
        const now = seconds();
        made.seconds += now - started;
        if (accepted.length) count = Math.min(Math.max(Math.round(count * SLICE / Math.max(now - started, 1e-3)), 1), 2 * count, this.about.iterations);
        else count = 8;
        if (tokens < memory.length) yield {stage, side, pixels: memory.pixels(tokens), tokens, steps: accepted.length, complete: false, seconds: made.seconds, ...seen};
        started = seconds();
      }
      source = memory.pixels(tokens);
      made.stages.push({side, pixels: source, tokens, steps: accepted.length, accepted, proposed, ...seen});
    }
    return source;
  }

  /** Draw the pictures that finishing averages by the stages up to `end`; return their mean. */
  *average(cells, way, end, made) {
    const pictures = [];
    for (const [source, key, changes] of drawingsOf(cells, way)) {
      if (pictures.length) yield pictureOf(made, pictures.at(-1));
      pictures.push(yield* this.draw(source, key, {...way, ...changes}, [0, end], made));
    }
    return meanOf(pictures, cells, way.finish);
  }

  /** Repeat the tokens of a draft in the first stage, unless its memory still has them. */
  repeat(cells, tokens, way) {
    const [memory] = this.stages, name = JSON.stringify([[...cells], way.blockSize]);
    const goesOn = memory.drafted?.name === name && String(memory.drafted.tokens) === String(tokens);
    if (!goesOn) {
      memory.begin(cells, imageKey(cells, 1), way, this.about.rules);
      memory.iterate(1);
      memory.accept(INTENSITIES);
      for (let at = 0; at < tokens.length; at += memory.size) {
        const block = tokens.slice(at, at + memory.size);
        if (memory.offer(block) < block.length) throw new RangeError("these tokens are not of this picture; begin again");
      }
    }
    memory.drafted = null;
    return {memory, keep: known => { memory.drafted = {name, tokens: known}; }};
  }

  /**
   * Verify what somebody proposes, and yield what is accepted at least once per slice of time; the last one is complete.
   * @param {Uint8Array} cells - the pixels of the input, RGB, row by row
   * @param {Drafting} drafting
   * @returns {Generator<Drafted>}
   */
  *draft(cells, {tokens = [], by = "heads", epsilon = DEFAULTS.epsilon, blockSize = this.about.stages[0].heads, calls = 1}) {
    const way = this.complete(cells, {accept: "distance", epsilon, blockSize});
    const begun = [...tokens], {memory, keep} = this.repeat(cells, begun, way), known = begun.slice(), accepted = [];
    memory.accept(epsilon);
    const told = complete => ({accepted: [...accepted], tokens: known.slice(begun.length), pending: known.length < memory.length ? memory.pending() : [], seconds: spent, complete});
    let spent = 0, count = 8;  // calls of a slice of time
    while (accepted.length < calls && known.length < memory.length) {
      const started = seconds(), most = Math.min(count, calls - accepted.length, this.about.iterations);
      for (let call = 0; call < most && known.length < memory.length; call++) {
        const block = memory.pending();
        if (by !== "heads") block.splice(1, block.length, ...this.guesses(cells, [...known, block[0]], by, memory.size - 1));
        const made = memory.offer(block);
        known.push(...block.slice(0, made));
        accepted.push(made);
      }
      const now = seconds();
      spent += now - started;
      count = Math.max(Math.round(most * SLICE / Math.max(now - started, 1e-3)), 1);
      if (accepted.length < calls && known.length < memory.length) yield told(false);
    }
    keep(known);
    yield told(true);
  }

  /** Return up to `count` guesses of what follows the tokens `known`: those of `by`, or the pixels on the left. */
  guesses(cells, known, by, count) {
    if (by !== "left") return by.slice(0, count);
    const row = CHANNELS * this.about.stages[0].target, all = known.slice();
    for (let at = all.length; at < known.length + count; at++) all.push(at % row >= CHANNELS ? all[at - CHANNELS] : at >= row ? all[at - row] : cells[at]);
    return all.slice(known.length);
  }
}

/** Return a picture after the last decode of `made`, of which it is made. */
function pictureOf({stages, seconds}, pixels) {
  const {side, tokens, steps} = stages.at(-1);
  return {stage: stages.length - 1, side, pixels, tokens, steps, complete: false, seconds};
}

/** Return a module's functions if they compute what they should; null if this browser has no such instructions. */
async function instantiate(bytes, {self_test: digest, abi}) {
  if (!WebAssembly.validate(bytes)) return null;
  const module = await WebAssembly.compile(bytes), imports = {};
  for (const {module: from, name} of WebAssembly.Module.imports(module)) (imports[from] ??= {})[name] = () => 0;  // of a system; nothing calls them
  const {exports} = await WebAssembly.instantiate(module, imports);
  exports._initialize?.();
  const own = new TextDecoder().decode(new Uint8Array(exports.memory.buffer, exports.superres_abi(), abi.length));
  if (own !== abi) throw new Error("weights.bin and the modules of WebAssembly are of different releases; export the folder again");
  return BigInt.asUintN(64, exports.superres_self_test()) === BigInt(`0x${digest}`) ? exports : null;
}

async function unpack(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer().catch(() => { throw new Error("weights.bin is damaged"); }));
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const about = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  if (about.format !== FORMAT) throw new Error(`weights.bin has format ${about.format}, and superres.js knows ${FORMAT}; export the folder again`);
  const planes = bytes.subarray(4 + length), quarter = planes.length / 4, body = new Uint8Array(planes.length);
  for (let plane = 0, at = 0; plane < 4; plane++) for (let n = 0; n < quarter; n++, at++) body[4 * n + plane] = planes[at];
  return {about, body};
}

/**
 * Make an engine without a Worker.
 * @param {(name: string) => Promise<Uint8Array>} read - returns a file of the exported folder
 * @param {string[]} [variants] - the modules to try, the fastest first
 */
export async function open(read, variants = VARIANTS) {
  const packed = await read("weights.bin"), {about, body} = await unpack(packed);
  for (const variant of variants) {
    const bytes = await read(`superres-${variant}.wasm`), code = await instantiate(bytes, about);
    if (!code) continue;
    let begin = 0;
    const stages = about.stages.map(stage => {
      const own = body.subarray(begin, begin += stage.file);
      return new StageMemory(code, stage, own, about.transform);
    });
    return new Core(about, stages, variant, packed.length + bytes.length);
  }
  throw new Error("This browser lacks the vector instructions of WebAssembly, or computes with other rounding; update it, or use another one.");
}

/** The engine in a Worker of its own. It decodes one picture at a time, in the order of the calls. */
class Engine {
  constructor(worker, info) {
    Object.assign(this, {worker, info, calls: 0, heard: new Map()});
    worker.onmessage = ({data}) => this.heard.get(data.id)?.(data);
    worker.onerror = ({message}) => this.heard.forEach(hear => hear({error: message || "the engine has ended"}));
  }

  /**
   * Draw a picture, and yield it while it is decoded, about ten times per second. An aborted signal ends the drawing.
   * @param {Uint8Array} cells - the pixels of the input, RGB, row by row
   * @param {Way} [way]
   * @param {{signal?: AbortSignal}} [options]
   * @returns {AsyncGenerator<Picture>}
   */
  async *upscale(cells, way = {}, {signal} = {}) {
    yield* this.hear({cells, way}, signal);
  }

  /**
   * Verify what somebody proposes for the first stage, and yield what is accepted, about ten times per second.
   * @param {Uint8Array} cells - the pixels of the input, RGB, row by row
   * @param {Drafting} drafting
   * @param {{signal?: AbortSignal}} [options]
   * @returns {AsyncGenerator<Drafted>}
   */
  async *draft(cells, drafting = {}, {signal} = {}) {
    yield* this.hear({cells, drafting}, signal);
  }

  async *hear(question, signal) {
    signal?.throwIfAborted();
    const id = ++this.calls;
    let answer = null, wake = () => {};
    this.heard.set(id, data => { answer = data; wake(); });
    const stop = () => wake();
    signal?.addEventListener("abort", stop);
    this.worker.postMessage({id, ...question});
    try {
      for (;;) {
        signal?.throwIfAborted();
        if (!answer) {
          await new Promise(resolve => { wake = resolve; });
          continue;
        }
        const {picture, error} = answer;
        answer = null;
        if (error) throw new Error(error);
        yield picture;
        if (picture.complete) return;
      }
    } finally {
      this.heard.delete(id);
      signal?.removeEventListener("abort", stop);
      this.worker.postMessage({stop: id});
    }
  }

  close() {
    this.worker.terminate();
  }
}

/**
 * Load an engine into a Worker. An error says by `isMissing` that a file could not be fetched, not that it is of no use.
 * @param {string|URL} base - address of the exported folder
 * @param {{onProgress?: (loaded: number, total: number) => void, signal?: AbortSignal}} [options] - bytes; `total` is 0 if unknown
 * @returns {Promise<Engine>}
 */
export async function load(base, {onProgress, signal} = {}) {
  signal?.throwIfAborted();
  const folder = new URL(base, globalThis.document?.baseURI).href, worker = new Worker(new URL("superres.js", folder), {type: "module"});
  try {
    return await new Promise((resolve, reject) => {
      signal?.addEventListener("abort", () => reject(signal.reason));
      worker.onerror = ({message}) => reject(message ? new Error(message) : Object.assign(new Error("superres.js could not be loaded"), {isMissing: true}));
      worker.onmessage = ({data: {info, error, isMissing, loaded, total}}) => {
        if (info) resolve(new Engine(worker, info));
        else if (error) reject(Object.assign(new Error(error), {isMissing}));
        else onProgress?.(loaded, total);
      };
      worker.postMessage({folder, version: VERSION});
    });
  } catch (error) {
    worker.terminate();
    throw error;
  }
}

/** Return a function that reads a file of a folder, and tells how many bytes have come. */
function fetcher(folder) {
  let loaded = 0, total = 0;
  return async name => {
    const parts = [], stop = new AbortController();
    let patience = setTimeout(() => stop.abort(), PATIENCE);
    const missing = reason => Object.assign(new Error(`${name} could not be loaded (${reason})`), {isMissing: true});
    const answer = await fetch(new URL(name, folder), {signal: stop.signal, cache: "no-cache"}).catch(() => { throw missing("no connection"); });
    if (!answer.ok) throw missing(answer.status);
    if (!answer.headers.get("content-encoding")) total += Number(answer.headers.get("content-length")) || 0;
    for (const reader = answer.body.getReader(); ;) {
      const {done, value} = await reader.read().catch(() => { throw missing("the connection broke off"); });
      clearTimeout(patience);
      if (done) break;
      patience = setTimeout(() => stop.abort(), PATIENCE);
      parts.push(value);
      postMessage({loaded: loaded += value.length, total});
    }
    return new Uint8Array(await new Blob(parts).arrayBuffer());
  };
}

/** Answer the messages of an `Engine`. */
function serve() {
  const calls = [], stopped = new Set();  // waiting calls; calls under way that nobody waits for
  let core = null, running = null;
  const channel = new MessageChannel(), turn = () => new Promise(resolve => { channel.port1.onmessage = resolve; channel.port2.postMessage(0); });

  async function draw({id, cells, way, drafting}) {
    let last = 0;
    for (const picture of drafting ? core.draft(cells, drafting) : core.upscale(cells, way)) {
      const isWhole = picture.complete || picture.tokens === picture.pixels?.length;  // the next stage begins over it
      if (isWhole || picture.seconds - last >= FRAME) {
        postMessage({id, picture});
        last = picture.seconds;
      }
      await turn();  // a message may end this
      if (stopped.has(id)) return;
    }
  }

  async function work() {
    while ((running = calls.shift())) {
      try {
        await draw(running);
      } catch (error) {
        postMessage({id: running.id, error: error.message});
      }
      stopped.delete(running.id);
    }
  }

  self.onmessage = async ({data}) => {
    if (data.folder) {
      try {
        if (data.version !== VERSION) throw new Error(`the folder is of superres ${VERSION}, and the page's superres.js of ${data.version}; export the folder again`);
        core = await open(fetcher(data.folder));
        postMessage({info: core.info});
      } catch (error) {
        postMessage({error: error.message, isMissing: error.isMissing});
      }
    } else if (data.stop) {
      const at = calls.findIndex(({id}) => id === data.stop);
      if (at >= 0) calls.splice(at, 1);
      else if (running?.id === data.stop) stopped.add(data.stop);
    } else {
      calls.push(data);
      if (!running) work();
    }
  };
}

const HEADER = 33;  // bytes of a PNG file before its second chunk

/** Return a chunk of a PNG file: its length, name, data and check sum. */
function chunk(name, data) {
  const bytes = new Uint8Array(12 + data.length), view = new DataView(bytes.buffer);
  view.setUint32(0, data.length);
  bytes.set(new TextEncoder().encode(name), 4);
  bytes.set(data, 8);
  let sum = -1;
  for (const byte of bytes.subarray(4, -4)) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit++) sum = sum >>> 1 ^ (sum & 1 && 0xedb88320);
  }
  view.setUint32(bytes.length - 4, ~sum);
  return bytes;
}

/** Return a PNG file in a data URI with the mark that a model drew it, an XMP packet as `info.mark`, and how it was made. */
export function marked(uri, mark, record) {
  const bytes = Uint8Array.from(atob(uri.split(",")[1]), letter => letter.charCodeAt(0)), encode = text => new TextEncoder().encode(text);
  const parts = [bytes.subarray(0, HEADER), chunk("tEXt", encode("Software\0superres")),
    chunk("tEXt", encode(`superres\0${JSON.stringify({...record, note: NOTE})}`)),
    chunk("iTXt", encode(`XML:com.adobe.xmp\0\0\0\0\0${mark}`)), bytes.subarray(HEADER)];
  return `data:image/png;base64,${btoa(parts.map(part => Array.from(part, byte => String.fromCharCode(byte)).join("")).join(""))}`;
}

if (typeof WorkerGlobalScope !== "undefined" && globalThis instanceof WorkerGlobalScope) serve();
