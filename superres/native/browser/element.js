// <super-res>: a face that the model draws from few pixels in the visitor's browser, while it is drawn. Needs no style or script
// of the page, and no server. <super-res src="face.png" base="faces/" accept="distance" epsilon="2"></super-res>
import {NOTE, load, marked} from "./superres.js";

const HERE = import.meta.url.replace(/[^/]*$/, "");  // in an exported folder, the files are beside this one
const NUMBERS = {size: "size", epsilon: "epsilon", topk: "topK", blocksize: "blockSize", temperature: "temperature", seed: "seed", sample: "sample"};
const WORDS = ["accept", "finish"], INPUTS = ["src", "pixels", "base"];
const MOST = 64;  // pixels of a side of an input
const ALT = "A face, drawn by a model";
const STYLE = `:host { display: inline-block; width: 256px; max-width: 100%; vertical-align: top; }
:host([hidden]), [hidden] { display: none; }
figure { margin: 0; }
canvas, img { display: block; width: 100%; aspect-ratio: 1; background: #8882; }
.input { image-rendering: pixelated; }
figcaption { margin-top: 4px; min-height: 2.8em; font: 12px/1.4 system-ui, sans-serif; overflow-wrap: anywhere; }`;
let sheet;  // constructed: a page's policy need not allow inline styles

const engines = new Map();  // by base: what is loading or there, and who is told how far

/** Return the engine that the elements of a base share; `hear` is told the bytes that have come. */
export async function engineOf(base, hear = () => {}) {
  const folder = new URL(base, document.baseURI).href;
  if (!engines.has(folder)) {
    const hearers = new Set(), engine = load(folder, {onProgress: (loaded, total) => hearers.forEach(one => one(loaded, total))});
    engines.set(folder, {engine, hearers});
    engine.then(() => hearers.clear(), () => engines.delete(folder));  // the next one tries again
  }
  const {engine, hearers} = engines.get(folder);
  hearers.add(hear);
  return engine.catch(error => {
    throw error.isMissing ? new Error(`${error.message}; base is ${folder}, which should be the folder that "superres export web" wrote`) : error;
  });
}

/** Paint what is decoded of a picture over the one that it is drawn from. */
function paint(canvas, {pixels, side, tokens, complete = true, isMirrored}, below) {
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d", {willReadFrequently: true});
  context.imageSmoothingEnabled = false;
  if (below) context.drawImage(below, 0, 0, side, side);
  const image = context.getImageData(0, 0, side, side), count = complete ? side * side : Math.floor(tokens / 3);
  for (let at = 0; at < count; at++) {
    const place = isMirrored ? at - at % side + side - 1 - at % side : at;  // shown as the input is
    image.data.set([...pixels.subarray(3 * at, 3 * at + 3), 255], 4 * place);
  }
  context.putImageData(image, 0, 0);
}

/** Return the pixels in a text, as links have them. */
function cellsOf(text) {
  try {
    return Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), letter => letter.charCodeAt(0));
  } catch {
    throw new Error(`pixels is "${text}", which is not the text of pixels that a link has after x=`);
  }
}

/** Return the pixels of a picture at an address; a transparent one lies on white. */
async function cellsAt(src, signal) {
  const answer = await fetch(new URL(src, document.baseURI), {signal}).catch(() => null);
  if (!answer?.ok) throw new Error(`src is ${src}, which could not be loaded (${answer?.status ?? "no connection"})`);
  const picture = await createImageBitmap(await answer.blob()).catch(() => { throw new Error(`src is ${src}, which is not a picture that this browser reads`); });
  const {width, height} = picture;
  if (width !== height || width > MOST) throw new Error(`src is ${src}, a picture of ${width}x${height} pixels; give a square one of the input's size`);
  const context = Object.assign(document.createElement("canvas"), {width, height}).getContext("2d", {willReadFrequently: true});
  context.fillStyle = "#fff";
  context.fillRect(0, 0, width, height);
  context.drawImage(picture, 0, 0);
  return Uint8Array.from(context.getImageData(0, 0, width, height).data.filter((_, at) => at % 4 < 3));
}

export class SuperRes extends (globalThis.HTMLElement ?? class {}) {  // a server may import this file
  static observedAttributes = [...INPUTS, ...WORDS, ...Object.keys(NUMBERS), "alt"];

  #stop = new AbortController();
  #isDue = false;
  #cells = null;
  #picture = null;

  constructor() {
    super();
    const shadow = this.attachShadow({mode: "open"}), [figure, canvas, image, caption] = ["figure", "canvas", "img", "figcaption"].map(tag => document.createElement(tag));
    if (!sheet) (sheet = new CSSStyleSheet()).replaceSync(STYLE);
    shadow.adoptedStyleSheets = [sheet];
    [canvas.width, canvas.height, image.hidden] = [1, 1, true];
    for (const [one, part] of [[canvas, "picture"], [image, "picture"], [caption, "note"]]) one.setAttribute("part", part);
    figure.append(canvas, image, caption);
    shadow.append(figure);
    this.#name();
    if (Object.hasOwn(this, "cells")) {  // set before this file was there
      this.#cells = this.cells;
      delete this.cells;
    }
  }

  connectedCallback() {
    if (!this.#picture) this.#redraw();
  }

  disconnectedCallback() {
    this.#stop.abort();
  }

  attributeChangedCallback(name) {
    if (name === "alt") this.#name();
    else this.#redraw();
  }

  get cells() {
    return this.#cells;
  }

  set cells(cells) {
    this.#cells = cells;
    this.#redraw();
  }

  get picture() {
    return this.#picture;
  }

  /**
   * Draw again, and return the picture; null if there is no input, newer pixels came, or an error was told.
   * @returns {Promise<import("./superres.js").Picture|null>}
   */
  async draw() {
    this.#stop.abort();
    const {signal} = this.#stop = new AbortController();
    this.#picture = null;
    this.#busy(true);
    try {
      const cells = this.#cells ?? await this.#given(signal);
      if (cells && !signal.aborted) await this.#drawn(cells, this.#way(), signal);
    } catch (error) {
      if (!signal.aborted) this.#fail(error);
    }
    if (!signal.aborted) this.#busy(false);
    return signal.aborted ? null : this.#picture;
  }

  #redraw() {  // once for all attributes of a moment
    if (this.#isDue) return;
    this.#isDue = true;
    queueMicrotask(() => {
      this.#isDue = false;
      if (this.isConnected) this.draw();
    });
  }

  async #given(signal) {
    const text = this.getAttribute("pixels"), src = this.getAttribute("src");
    return text !== null ? cellsOf(text) : src !== null ? cellsAt(src, signal) : null;
  }

  #way() {
    const way = {};
    for (const name of WORDS) if (this.hasAttribute(name)) way[name] = this.getAttribute(name);
    for (const [name, setting] of Object.entries(NUMBERS)) {
      const text = this.getAttribute(name);
      if (text !== null) way[setting] = text.trim() && Number.isFinite(Number(text)) ? Number(text) : `"${text}"`;
    }
    return way;
  }

  async #drawn(cells, way, signal) {
    const [canvas, image] = this.#parts, side = Math.sqrt(cells.length / 3);
    [canvas.hidden, image.hidden, canvas.className] = [false, true, "input"];
    if (Number.isInteger(side) && side <= MOST) paint(canvas, {pixels: cells, side});
    const engine = await engineOf(this.getAttribute("base") ?? HERE, (loaded, total) => {
      if (signal.aborted) return;
      this.#say(`Loading the model: ${(loaded / 1e6).toFixed(1)}${total >= loaded ? ` of ${(total / 1e6).toFixed(1)}` : ""} MB.`);
      this.#tell("progress", {loaded, total});
    });
    this.#say("Drawing.");
    let below = await createImageBitmap(canvas), last;
    for await (const picture of engine.upscale(cells, way, {signal})) {
      if (last && picture.stage > last.stage) below = await createImageBitmap(canvas);
      paint(canvas, last = picture, below);
      canvas.className = "";
      if (!picture.complete) this.#tell("progress", picture);
    }
    const {checkpoint, revision, mark} = engine.info;
    image.src = marked(canvas.toDataURL(), mark, {checkpoint, revision, ...way});
    await image.decode().then(() => { [canvas.hidden, image.hidden] = [true, false]; }, () => {});  // a page's policy may forbid it
    signal.throwIfAborted();
    this.#picture = last;
    this.#say(`Drawn by a model: ${NOTE}.`);
    this.#tell("drawn", last);
  }

  #fail(error) {
    const [canvas, image] = this.#parts;
    [canvas.hidden, image.hidden] = [true, true];
    this.#say(`${error.message}.`);
    console.error(`<super-res>: ${error.message}`);
    this.#tell("error", error);
  }

  get #parts() {
    return this.shadowRoot.firstElementChild.children;
  }

  #name() {
    const [canvas, image] = this.#parts, alt = this.getAttribute("alt") ?? ALT;
    image.alt = alt;
    canvas.setAttribute("role", alt ? "img" : "presentation");
    canvas.setAttribute("aria-label", alt);
  }

  #busy(isBusy) {
    this.shadowRoot.firstElementChild.setAttribute("aria-busy", isBusy);
  }

  #say(text) {
    this.#parts[2].textContent = text;
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(`superres-${name}`, {detail, bubbles: true, composed: true}));
  }
}

if (globalThis.customElements && !customElements.get("super-res")) customElements.define("super-res", SuperRes);
