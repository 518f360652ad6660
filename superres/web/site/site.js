// The static page: what its elements ask is answered by the engine of superres.js in this browser, and no server. Events are
// those of the server's page: see paint.js. Nothing is downloaded beside the page until the visitor starts.
import {readPhoto, reduced} from "./photos.js";
import {canvasOf, card, enlarged, unfinished} from "./pictures.js";

const {make} = superres;
const BASE = new URL("./", import.meta.url), MOST_KNOWN = 40;  // finished faces that are not drawn again
const LOADED = "The model is loaded";
const FINISH = "mean";  // as superres/web/paint.py finishes faces
const NOT_FINISHED = "A sample keeps the detail that it invented, and only the likeliest face is finished; choose that one.";
const ALIGNED = {width: 178, height: 218, square: [20, 40, 138]}, UNCERTAIN = 0.5;  // CelebA's aligned pictures; doubt from which a face is uncertain
const CLEAR = 1.25;  // smallest ratio of two times that tells them apart, as in superres/web/drawing.py
const {xmp} = document.body.dataset, element = id => document.getElementById(id);
const box = document.querySelector("superres-paint"), view = JSON.parse(box.dataset.view);
const number = value => value.toLocaleString("en"), megabytes = bytes => `${(bytes / 1e6).toFixed(1)} MB`;
const tell = (name, detail) => document.dispatchEvent(new CustomEvent(`superres-${name}`, {detail}));
const button = (text, action) => {
  const made = make("button", {type: "button"}, text);
  made.addEventListener("click", action);
  return made;
};

// The engine: loaded once, told how far.
let library, engine, loading, failed = false, painting = false;  // what the visitor does in the box starts it, too
for (const event of ["pointerdown", "keydown"]) box.addEventListener(event, ({target}) => { painting ||= !target.closest(".sr-deeds, .sr-others"); });
document.addEventListener("superres-photo", () => { painting = true; });

async function start() {
  loading ??= begin();
  return loading;
}

// Load scripts and styles.
const add = (...names) => document.head.append(...names.map(name => name.endsWith(".js") ? make("script", {src: name}) : make("link", {rel: "stylesheet", href: name})));
const once = work => {
  let made;
  return () => made ??= work();
};
const loadLater = once(() => add(...document.body.dataset.later.split(" ").filter(Boolean)) ?? true);  // what shows what the engine draws

async function begin() {
  const bar = element("loading"), words = element("told");
  element("start").hidden = true;
  bar.hidden = false;
  failed = false;
  try {
    await worker;
    words.textContent = "Loading the model…";
    library = await import("./superres.js").catch(() => { throw Object.assign(new Error("no connection"), {isMissing: true}); });
    engine = await library.load(BASE, {onProgress: (loaded, total) => {
      const isKnown = total >= loaded;  // not where the host compresses
      if (isKnown) bar.value = loaded / total;
      words.textContent = `Loading the model: ${megabytes(loaded)}${isKnown ? ` of ${megabytes(total)}` : ""}.`;
    }});
    words.textContent = `${LOADED}${navigator.serviceWorker?.controller ? ", and the page works offline" : ""}.`;
    if (navigator.serviceWorker?.controller) fetch(new URL("finder.bin", BASE)).catch(() => {});  // it is kept, too
    loadLater();
    tell("missing", "");
    if (waiting) learn(waiting);
    tell("asking");  // the box asks again
  } catch (error) {
    failed = true;
    loading = null;
    if (!error.isMissing) await forget();
    words.textContent = `The model could not be loaded: ${error.message}. ${error.isMissing ? "Check the connection, and try again." : "Reload the page."}`;
    element("start").textContent = "Try again";
    element("start").hidden = !error.isMissing;
  }
  bar.hidden = true;
}

// Keep the files where the browser can; a first visit waits for that, so that the model is kept, too.
async function register() {
  if (!navigator.serviceWorker) return;
  const controlled = new Promise(done => navigator.serviceWorker.addEventListener("controllerchange", done, {once: true}));
  await navigator.serviceWorker.register("service-worker.js");
  if (!navigator.serviceWorker.controller) await Promise.race([controlled, new Promise(done => setTimeout(done, 3000))]);
}
const worker = Promise.race([register(), new Promise(done => setTimeout(done, 5000))]).catch(() => {});  // a browser may forbid it
element("offline").hidden = !navigator.serviceWorker;

// Forget kept files that are of no use: damaged ones, or of two exports. The next visit fetches all anew.
async function forget() {
  for (const one of await navigator.serviceWorker?.getRegistrations() ?? []) if (one.scope === BASE.href) await one.unregister();
  for (const name of await globalThis.caches?.keys() ?? []) if (name.startsWith(`superres ${BASE.href} `)) await caches.delete(name);
}

// Return a picture that the model drew as a PNG in a data URI, with the mark.
const markedUri = (canvas, record) => library.marked(canvas.toDataURL(), xmp, record);

// What is drawn. The pixels of an input are the text of paint.js.
const cellsOf = text => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), letter => letter.charCodeAt(0));
const sourceOf = text => canvasOf(cellsOf(text), view.side);

// Draw a face, and return it; `partial` gets what it is so far: an address, steps and seconds.
async function draw(text, way, signal, partial, one = engine) {
  let last, below = sourceOf(text), steps = 0;  // of the stages before
  for await (const picture of one.upscale(cellsOf(text), way, {signal})) {
    if (last && picture.stage > last.stage) [below, steps] = [unfinished(last, below), steps + last.steps];
    last = picture;
    if (!picture.complete) partial({uri: unfinished(picture, below).toDataURL(), steps: steps + picture.steps, seconds: picture.seconds});
  }
  return faceOf(last, way);
}

// Return the face of pixels; finished ones are kept.
const known = new Map();

async function drawn(text, changes, signal, partial = () => {}) {
  const way = {size: view.target, blockSize: view.block, ...changes}, name = JSON.stringify([text, way]);
  if (!known.has(name)) known.set(name, await draw(text, way, signal, partial));
  if (known.size > MOST_KNOWN) known.delete(known.keys().next().value);
  return known.get(name);
}

// Return a finished picture for the elements.
function faceOf({pixels, side, digest, seconds, stages}, way) {
  const canvas = canvasOf(pixels, side), sum = name => stages.reduce((total, stage) => total + stage[name], 0);
  const {checkpoint, revision} = engine.info;
  return {canvas, uri: markedUri(canvas, {checkpoint, revision, ...way}), digest, seconds, stages, steps: sum("steps"), tokens: sum("tokens")};
}

const sampled = ({t, s}, sample) => ({temperature: t, seed: s, sample});
const wayOf = question => question.n ? sampled(question, question.n) : {};  // of the face that is shown large

async function others(question, signal, partial = () => {}) {
  const faces = [];
  for (let sample = 1; sample <= view.others; sample++) {
    faces.push(await drawn(question.x, sampled(question, sample), signal));
    if (sample < view.others) partial({faces});
  }
  return faces;
}

const ANSWERS = {
  small: async (question, signal, partial) => {
    const size = engine.info.stages[0].target;
    return {faces: [await drawn(question.x, {...wayOf(question), size}, signal, face => partial({faces: [face]}))]};
  },
  large: async (question, signal, partial) => {
    const face = await drawn(question.x, wayOf(question), signal, one => partial({faces: [one]}));
    if (!question.n) show(question.x, face);
    return {faces: [face]};
  },
  finished: async ({x, n}, signal, partial) => n ? {error: NOT_FINISHED}
    : {faces: [await drawn(x, {finish: FINISH}, signal, face => partial({faces: [face]}))]},
  others: async (question, signal, partial) => {
    const faces = await others(question, signal, partial);
    if (shown?.x === question.x) show(question.x, shown.face, faces);
    return {faces};
  },
  card: async (question, signal) => {
    const faces = [await drawn(question.x, {}, signal), ...await others(question, signal)], [face] = faces.splice(question.n, 1);
    const {hasFace} = await import("./finder.js"), isFace = await hasFace(face.canvas);
    const picture = card(sourceOf(question.x), face.canvas, faces.slice(-view.others).map(({canvas}) => canvas), question.link, isFace);
    return {file: "card.png", uri: markedUri(picture, {checkpoint: engine.info.checkpoint})};
  },
};

// The questions that are being answered, by kind; newer pixels end the others.
const jobs = new Map();
let current;  // the pixels of the latest question

// Begin a job for pixels `x`, end what newer pixels or the same kind replace, and return its signal.
function job(kind, x) {
  for (const [other, {x: before, stop}] of jobs) {
    if (other !== kind && before === x) continue;
    stop.abort(new Error("newer pixels"));
    jobs.delete(other);
  }
  const stop = new AbortController();
  jobs.set(kind, {x, stop});
  return stop.signal;
}

async function answer(kind, text) {
  const question = JSON.parse(text), signal = job(kind, question.x);
  current = question.x;
  waiting = null;
  if (engine && element("told").textContent.startsWith(LOADED)) element("told").textContent = "";  // the box has the word
  const say = detail => { if (!signal.aborted) tell("answer", {...detail, kind, question: text}); };
  if (!engine) {
    if (!failed && painting) start();
    return say({wait: true});
  }
  try {
    say(await ANSWERS[kind](question, signal, partial => say({...partial, partial: true})));
  } catch (error) {
    say({error: `The face could not be drawn (${error.message}). Reload the page.`});
  }
}
for (const kind of Object.keys(ANSWERS)) document.addEventListener(`superres-ask-${kind}`, ({detail}) => answer(kind, detail));

// The tabs: that of the game opens by a link to a score, too.
const tabs = [...document.querySelectorAll(".tabs [role=tab]")];

// Load the game, once.
const loadGame = once(async () => {
  add("draft.css", "draft.js");
  const view = await fetch(new URL("game.json", BASE)).then(answer => answer.text()).catch(() => null);
  const game = make(...view ? ["superres-draft", {"data-view": view}] : ["p", {role: "status"}, "The game could not be loaded. Check the connection, and reload the page."]);
  game.addEventListener("pointerdown", ({target}) => { if (target.closest(".sr-plays, .sr-means") && !failed) start(); });
  element("panel-draft").append(game);
});

function openTab(tab) {
  const isGame = tab.id === "tab-draft";
  if (isGame) loadGame();
  if (isGame) element("panel-draft").prepend(element("engine"));  // Start, and how far the model is loaded
  else box.querySelector(".sr-told").after(element("engine"));
  for (const one of tabs) {
    one.setAttribute("aria-selected", String(one === tab));
    one.tabIndex = one === tab ? 0 : -1;
    element(one.getAttribute("aria-controls")).hidden = one !== tab;
  }
}
for (const [at, tab] of tabs.entries()) {
  tab.addEventListener("click", () => openTab(tab));
  tab.addEventListener("keydown", event => {
    const next = {ArrowRight: at + 1, ArrowLeft: at - 1 + tabs.length, Home: 0, End: tabs.length - 1}[event.key];
    if (next === undefined) return;
    event.preventDefault();
    openTab(tabs[next % tabs.length]);
    tabs[next % tabs.length].focus();
  });
}
const openGame = () => { if (/^#draft\b/.test(location.hash)) openTab(element("tab-draft")); };
window.addEventListener("hashchange", openGame);

// What the game asks: it ends no painting, and the engine answers in the order of the questions.
document.addEventListener("superres-ask-draft", async ({detail: text}) => {
  const {x, c, by, g, k, e, calls} = JSON.parse(text), say = detail => tell("answer", {...detail, kind: "draft", question: text});
  if (!engine) return say({wait: loading ? "The model is being loaded." : failed ? "The model is not loaded." : "Press Start: the model runs in this browser."});
  try {
    let last;
    for await (last of engine.draft(cellsOf(x), {tokens: cellsOf(c), by: by === "you" ? g : by, epsilon: e, blockSize: k, calls}));
    say(last);
  } catch (error) {
    say({error: error.message});
  }
});
// The box shows the faces that came with the page: what the parts below tell of the likeliest one, the engine finds out, once there is one.
let waiting;
document.addEventListener("superres-known", ({detail}) => engine ? learn(detail) : waiting = detail);

async function learn(x) {
  const signal = job("known", x);
  current = x;
  const face = await drawn(x, {}, signal).catch(() => null);
  if (face && !signal.aborted) show(x, face);
}

// A photo or an example: its crop, and what the model sees of it.
let photo, truth, painted, choices = 0;  // `painted` pixels are not the photo's

// Take a photo, unless the visitor has painted or chosen another one before it is there. The `square` of an example is known; of
// another photo, the visitor accepts one.
async function take(file, square, choice = ++choices) {
  let crops, hint;
  try {
    const given = await file, read = await readPhoto(given, view.side);
    if (choice !== choices) return read.close();
    photo?.bitmap.close();
    URL.revokeObjectURL(photo?.uri);
    photo = {bitmap: read, uri: URL.createObjectURL(given)};
    [crops, hint] = square ? [[{square, kind: "face"}]] : await squaresOf(read);
  } catch (error) {
    if (choice === choices) refuse(error.message);
    return;
  }
  if (choice !== choices) return;
  const {width, height} = photo.bitmap, sides = crops.map(crop => crop.square[2]), data = {width, height, least: view.side, crops, hint,
    chosen: sides.indexOf(Math.max(...sides))};
  const isInput = width === view.side && height === view.side;
  element("crop").replaceChildren(...isInput ? [] : [make("superres-crop", {"data-photo": JSON.stringify(data)}, make("img", {src: photo.uri, alt: "Your photo"}))]);
  if (square || isInput) reduce(crops[0].square);
  else tell("offered");
}

// Return the squares of a photo that may become the input, and what to say of the search, as superres.tasks.photos chooses them.
async function squaresOf(read) {
  const {width, height} = read, side = Math.min(width, height), stays = "The photo stays on this device.";
  if (width === ALIGNED.width && height === ALIGNED.height) return [[{square: ALIGNED.square, kind: "aligned"}], stays];
  const centre = {square: [Math.floor((width - side) / 2), Math.floor((height - side) / 2), side], kind: "centre"};
  if (side <= view.target) return [[centre], stays];
  try {
    const {findFaces, squareOf} = await import("./finder.js"), faces = await findFaces(read);
    const crops = faces.map(face => ({square: squareOf(face), kind: "face", searched: true, uncertain: face.doubt >= UNCERTAIN}));
    return [crops.length ? crops : [{...centre, searched: true, uncertain: true}], stays];
  } catch (error) {
    return [[centre], `${superres.sentence(error.message)} Move the frame to the face. ${stays}`];
  }
}

function refuse(text) {
  element("crop").replaceChildren();
  tell("refused", text);
}

function reduce(square) {
  const pictures = [view.side, view.target].filter(size => size <= square[2]).map(size => canvasOf(reduced(photo.bitmap, square, size), size).toDataURL());
  truth = square[2] > view.side ? pictures[1] : undefined;
  tell("input", {uri: pictures[0], truth});
}

document.addEventListener("superres-painted", ({detail}) => {
  painted = detail;
  if (painted) choices++;
});
document.addEventListener("superres-photo", ({detail}) => take(detail));
document.addEventListener("superres-square", ({detail}) => reduce(detail.split(",").map(Number)));
document.addEventListener("superres-example", ({detail}) => example(detail));

async function example(at) {
  const {file, square} = view.examples[at], choice = ++choices, answer = await fetch(new URL(file, BASE)).catch(() => null);
  if (choice !== choices) return;
  if (answer?.ok) await take(answer.blob(), square);
  else refuse("the example could not be loaded. Check the connection, and choose it again.");
}

// What is known of the face: pictures to compare, a race, and its steps; each is made when its part is opened.
let shown;

function show(x, face, samples = []) {
  const isNew = shown?.face !== face;
  shown = {x, face, samples, truth: painted ? undefined : truth};
  for (const opener of openers) opener.disabled = false;
  for (const part of document.querySelectorAll(`#more > ${isNew ? "div" : "#compare"}:not([hidden])`)) fill(part);
}

const PARTS = {
  compare: ({x, face, samples, truth}) => {
    const source = sourceOf(x), large = smooth => enlarged(source, view.target, smooth).toDataURL();
    const before = [{name: "Input", uri: large(false)}, {name: "Enlarged", uri: large(true)}, ...truth ? [{name: "Truth", uri: truth}] : []];
    const stages = ({stages}) => stages.slice(0, -1).map(({side, pixels}) => ({name: `Stage of ${side} pixels`,
      uri: markedUri(enlarged(canvasOf(pixels, side), view.target), {})}));
    const named = [face, ...samples].map((one, at) => ({name: at ? `Person ${at}` : "The likeliest", uri: one.uri, note: "",
      made: "exact", file: `face-${at + 1}.png`, before: stages(one)}));
    return [make("superres-viewer", {"data-view": JSON.stringify({before, faces: named})})];
  },
  steps: ({x, face: {stages, seconds}}) => stages.flatMap(({side, accepted, proposed}, at) => {
    const below = (at ? canvasOf(stages[at - 1].pixels, stages[at - 1].side) : sourceOf(x)).toDataURL();
    const decode = {name: "", seconds: seconds * accepted.length / stages.reduce((sum, one) => sum + one.accepted.length, 0), below,
      parts: [{accepted, proposed}]};
    return [make("h3", {}, `Stage ${at + 1}: ${side} pixels a side`), make("superres-stepper", {role: "group", "aria-label": "Step through the decode",
      "data-view": JSON.stringify({kind: "face", decodes: [decode], language: "", side})})];
  }),
  race: () => [button("Start the race", race)],
};

function fill(part) {
  if (shown && !(part.id === "race" && jobs.has("race"))) part.replaceChildren(...PARTS[part.id](shown));
}

// Open a part by one click: a race begins at once.
const openers = document.querySelectorAll("#more > .parts > button");
for (const opener of openers) {
  const part = element(opener.getAttribute("aria-controls"));
  opener.addEventListener("click", () => {
    part.hidden = !part.hidden;
    opener.ariaExpanded = String(!part.hidden);
    if (part.hidden) return;
    fill(part);
    if (part.getBoundingClientRect().top > 0.6 * innerHeight) part.scrollIntoView();
    if (part.id === "race" && !jobs.has("race")) race();
  });
}

// Draw a face with one pixel value per step and in blocks at the same time, in a Worker each, and replay both.
async function race() {
  const place = element("race"), {x} = shown;
  if (x !== current) return place.replaceChildren(make("p", {role: "status"}, "The pixels are new. Race when their face is there."), button("Start the race", race));
  const signal = job("race", x), note = make("p", {role: "status"}, "Loading a second engine…");
  place.replaceChildren(note, button("Stop", () => jobs.get("race")?.stop.abort(new Error("stopped"))));
  let rival;  // a second engine
  try {
    rival = await library.load(BASE, {signal});
    const panels = make("div", {class: "sr-panels"}), ways = [["One pixel value per step", rival, 1], ["Several pixel values per step", engine, view.block]];
    place.prepend(panels);
    note.textContent = "Both draw at the same time, each on its own processor core if the device has two.";
    const faces = await Promise.all(ways.map(([name, one, blockSize]) => {
      const image = make("img", {alt: `${name}: the picture so far`}), count = make("figcaption");
      panels.append(make("figure", {class: "sr-figure sr-pixels"}, make("b", {}, name), make("div", {class: "sr-frame"}, image), count));
      const tick = ({uri, steps, seconds}) => {
        image.src = uri;
        count.textContent = `${number(steps)} steps, ${seconds.toFixed(1)} s`;
      };
      return draw(x, {blockSize, size: view.target}, signal, tick, one).then(face => {
        tick(face);
        return face;
      });
    }));
    place.replaceChildren(...replay(x, ways.map(([name]) => name), faces), button("Race again", race));
  } catch (error) {
    if ((jobs.get("race")?.stop.signal ?? signal) !== signal) return;  // another one has begun
    place.replaceChildren(make("p", {role: "status"}, signal.aborted ? "The race was stopped." : `The race failed (${error.message}).`), button("Start the race", race));
  } finally {
    rival?.close();
    if (jobs.get("race")?.stop.signal === signal) jobs.delete("race");
  }
}

function replay(x, names, faces) {
  const [slow, fast] = faces, same = slow.digest === fast.digest ? "the same picture" : "another picture";
  const decodes = faces.map(({stages}, at) => ({name: names[at], end: at ? same : "done", stages: stages.map(({side, pixels, tokens, accepted}) =>
    ({uri: canvasOf(pixels, side).toDataURL(), side, tokens, accepted}))}));
  const data = {input: sourceOf(x).toDataURL(), size: `${view.side}x${view.side}`, side: view.target, truth: null, decodes};
  const ratio = slow.seconds / fast.seconds;
  const words = ratio >= CLEAR ? `Blocks were ${ratio.toFixed(1)} times as fast. ` : ratio > 1 / CLEAR ? "Both took about as long: on one thread, a step costs about as much as what it proposes. "
    : "In your browser, one token per step is faster: on one thread, a proposal costs nearly as much as a step, and some are rejected. ";
  return [make("p", {role: "status"}, make("b", {}, `${number(slow.steps)} steps in ${slow.seconds.toFixed(2)} s, and ${number(fast.steps)} in ${fast.seconds.toFixed(2)} s. `),
    words, "Below, both have made the same number of steps at any time."),
    make("superres-race", {role: "group", "aria-label": "A face, decoded in two ways", "data-view": JSON.stringify(data)})];
}

// Begin: dark or light, where the model is told of, and the model if this browser has kept it.
const dark = matchMedia("(prefers-color-scheme: dark)"), dress = () => document.documentElement.classList.toggle("dark", dark.matches);
dark.addEventListener("change", dress);
dress();
element("start").addEventListener("click", start);
for (const name of ["dragover", "drop"]) document.addEventListener(name, event => event.preventDefault());  // a file beside the box would replace the page
openTab(element("tab-paint"));
openGame();
tell("missing", "Press Start first: the model draws it");
tell("asking");
if (await globalThis.caches?.match(new URL("weights.bin", BASE)).catch(() => null)) start();
