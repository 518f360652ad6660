"use strict";
// The rater's page. It identifies trials by opaque tokens; the server decides sides, order and methods.

const byId = (id) => document.getElementById(id);
const SECTIONS = ["loading", "start", "again", "trial", "small", "done"];
const RETRY_MS = [500, 1000, 2000, 4000];
const GAP = 32;           // between pictures side by side, as in survey.css
const FRAME = 16;         // padding and border of a picture's button
const LEAST_HEIGHT = 120; // a window that is lower than its pictures scrolls

const ANSWERS = {ArrowLeft: "left", ArrowUp: "left", f: "left", F: "left", ArrowRight: "right", ArrowDown: "right",
  j: "right", J: "right", " ": "unsure", 1: "torn", 2: "unequal", 3: "good"};

let study = null;
let session = null;
let raterFromUrl = null;
let key = "";          // key of a personal link, with which a rater returns from any browser
let panel = {};        // the study and the submission at a panel that sent the rater
let trial = null;      // trial on the page; null while no vote is possible
let shownAt = 0;       // performance.now() at the display of both pictures
let section = "loading";

function show(name) {
  section = name;
  refresh();
}

// The section "small" replaces the others from the first page on while the window is too small, so that nobody starts
// what would then be refused.
function refresh() {
  const covered = !["loading", "done"].includes(section) && tooSmall();
  const shown = covered ? "small" : section;
  for (const name of SECTIONS) byId(name).hidden = name !== shown;
  document.body.classList.toggle("judging", shown === "trial");
  if (covered) byId("size").textContent = `The survey needs ${study.minimum_viewport.join(" × ")} pixels, and this window has ${window.innerWidth} × ${window.innerHeight}. Enlarge the window, zoom out, turn the screen, or use a larger one. The survey then goes on by itself.`;
  if (shown === "trial") fit();
}

// A study has pairs, or single pictures that are judged.
const sides = () => (study.allow_unsure ? ["left", "right", "unsure"] : ["left", "right"]);
const choices = () => (study.judge ? ["torn", "unequal", "good"] : sides());
const shownImages = () => (study.judge ? ["single"] : ["left", "right"]).map((name) => byId(`${name}-picture`));

// Show the pictures as large as the window allows: side by side or stacked, whichever is larger. They are enlarged only
// if the study says so. A picture of single pixels keeps a whole number of CSS pixels for each of its own pixels.
function fit() {
  const pair = byId("pair");
  const images = shownImages();
  const [width, height] = [images[0].naturalWidth, images[0].naturalHeight];
  if (!width || !height) return;
  const arrange = (stacked, factor) => {
    pair.classList.toggle("stacked", stacked);
    for (const image of images) {
      image.width = Math.round(width * factor);
      image.height = Math.round(height * factor);
    }
  };
  const factor = (stacked) => {
    arrange(stacked, 0);
    const button = byId("left");
    // A label is below its picture if they are side by side, else beside it.
    const room = byId("trial").clientWidth;
    const across = stacked ? room - button.offsetWidth : (room + GAP) / images.length - GAP - FRAME;
    const labels = stacked ? 2 * (button.offsetHeight - FRAME) : 0;
    const down = window.innerHeight - document.querySelector("main").offsetHeight + labels;
    return Math.min(study.fill ? Infinity : 1, across / width, Math.max(down, LEAST_HEIGHT) / (stacked ? 2 : 1) / height);
  };
  const [beside, stacked] = [factor(false), study.judge ? 0 : factor(true)];
  const best = Math.max(beside, stacked);
  arrange(stacked > beside, study.scale > 1 ? Math.max(1, Math.floor(best * study.scale)) / study.scale : best);
}

// Show a sentence; the server's own messages are lines without a capital and a full stop.
function say(text) {
  byId("message").textContent = text && text[0].toUpperCase() + text.slice(1) + (/[.…!?]$/.test(text) ? "" : ".");
}

function tooSmall() {
  const [width, height] = study.minimum_viewport;
  return window.innerWidth < width || window.innerHeight < height;
}

function keep(value) {
  try {
    if (value) localStorage.setItem(study.key, JSON.stringify(value));
    else localStorage.removeItem(study.key);
  } catch (error) { /* without storage, a rater can only resume by a personal link */ }
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(study.key));
  } catch (error) {
    return null;
  }
}

const wait = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// Repeat a request until the server responds with a status below 500.
async function ask(path, body) {
  for (let attempt = 0; ; attempt++) {
    try {
      const headers = {"Content-Type": "application/json"};
      if (session) headers["X-Session"] = session;
      const options = body ? {method: "POST", headers, body: JSON.stringify(body)} : {headers};
      const answer = await fetch(path, options);
      if (answer.status < 500) {
        const value = await answer.json();
        if (attempt) say("");
        return {status: answer.status, value, retryAfter: Number(answer.headers.get("Retry-After"))};
      }
    } catch (error) { /* tried again below */ }
    say("The server does not respond. No vote is lost; trying again…");
    await wait(RETRY_MS[Math.min(attempt, RETRY_MS.length - 1)]);
  }
}

function startOver(text) {
  session = null;
  trial = null;
  keep(null);
  show("start");
  say(text || "");
}

// Like `ask`, but wait as long as Retry-After says while the rate of enrolments is limited (status 429).
async function askInTurn(path, body) {
  for (;;) {
    const answer = await ask(path, body);
    if (answer.status !== 429) return answer;
    say(answer.value.error);
    await wait(1000 * answer.retryAfter);
  }
}

// Return 24 random bytes as 32 characters of base64url.
function newSession() {
  const bytes = crypto.getRandomValues(new Uint8Array(24));
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_");
}

async function enrol(event) {
  event.preventDefault();
  const rater = raterFromUrl || byId("rater").value.trim();
  if (!rater) return say("Please type your participant id.");
  byId("begin").disabled = true;
  // The page generates the token: if the response is lost, the repeated request resumes the same enrolment.
  session = session || newSession();
  const {status, value} = await askInTurn("api/raters", {rater, consent: study.consent_version, key, panel});
  byId("begin").disabled = false;
  if (status !== 200) return startOver(value.error);
  session = value.session;
  keep({session, rater: raterFromUrl});
  return next("");
}

function loaded(image, source) {
  image.src = source;
  return image.decode();
}

async function next(text) {
  trial = null;
  const {status, value} = await ask("api/trial");
  if (status !== 200) return startOver(value.error);
  if (value.done) return finish(value);
  byId("trial").classList.remove("ready");
  byId("progress").max = value.total;
  byId("progress").value = value.position - 1;
  byId("count").textContent = `${value.position} of ${value.total}${value.practice ? " (practice)" : ""}`;
  show("trial");
  say(text);
  const images = shownImages();
  const base = `pictures/${value.token}/`;
  for (let attempt = 0; ; attempt++) {
    try {
      const again = attempt ? `?${attempt}` : "";
      await Promise.all(images.map((image, place) => loaded(image, base + ["left", "right"][place] + again)));
      break;
    } catch (error) {
      if (attempt === 3) return next("");  // the pair may have been opened in another window
      say("The pictures cannot be loaded. Trying again…");
      await wait(RETRY_MS[attempt]);
      say(text);
    }
  }
  fit();
  byId("trial").classList.add("ready");
  requestAnimationFrame(() => requestAnimationFrame((now) => {
    shownAt = now;
    trial = value;
  }));
  return undefined;
}

async function vote(choice, input) {
  if (!trial || section !== "trial" || tooSmall()) return;
  const token = trial.token;
  const practice = trial.practice;
  const ballot = {
    token, choice, input,
    response_ms: Math.max(0, performance.now() - shownAt),
    display_px: shownImages()[0].getBoundingClientRect().width,
    pixel_ratio: window.devicePixelRatio,
    viewport_width: window.innerWidth,
    viewport_height: window.innerHeight,
  };
  trial = null;  // one vote per pair
  const {status, value} = await ask("api/votes", ballot);
  if (status === 401) return startOver(value.error);
  if (status === 200 && practice) {
    return next(value.correct ? "Practice: your choice was correct." : "Practice: your choice was wrong.");
  }
  return next(status === 200 || status === 409 ? "" : value.error);
}

function finish(value) {
  if (!raterFromUrl) keep(null);  // the next visitor may be another person, unless the link names the rater
  byId("thanks").textContent = value.thanks;
  byId("code").textContent = value.completion_code;
  byId("code-row").hidden = !value.completion_code;
  byId("link").href = value.completion_url || "#";
  byId("link-row").hidden = !value.completion_url;
  show("done");
  say("");
}

function onKey(event) {
  if (event.repeat || event.ctrlKey || event.altKey || event.metaKey || section !== "trial") return;
  const choice = ANSWERS[event.key];
  if (event.key === " ") event.preventDefault();  // the space bar must not press the focused button
  if (!choices().includes(choice)) return;
  event.preventDefault();
  vote(choice, "key");
}

async function main() {
  const {status, value} = await ask(`api/study${window.location.search}`);
  if (status !== 200) {
    byId("loading").hidden = true;
    return say(value.error);
  }
  study = value;
  document.title = study.title;
  byId("title").textContent = study.title;
  byId("consent").textContent = study.consent;
  byId("question").textContent = study.question;
  byId("unsure").hidden = !study.allow_unsure;
  byId("pair").hidden = study.judge;
  for (const name of ["single", "answers"]) byId(name).hidden = !study.judge;
  byId("trial").classList.toggle("smooth", study.scale === 1);
  const parameters = new URLSearchParams(window.location.search);
  raterFromUrl = study.id_params.map((name) => parameters.get(name)).find(Boolean) || null;
  key = parameters.get("link_key") || "";
  panel = Object.fromEntries(study.panel_params.map((name) => [name, (parameters.get(name) || "").slice(0, 200)])
    .filter(([, value]) => value));
  byId("id-row").hidden = Boolean(raterFromUrl);
  byId("enrol").addEventListener("submit", enrol);
  byId("continue").addEventListener("click", () => next(""));
  byId("other").addEventListener("click", () => startOver(""));
  for (const choice of choices()) {
    byId(choice).addEventListener("click", (event) => {
      if (event.detail) event.currentTarget.blur();
      vote(choice, event.detail ? "pointer" : "key");
    });
  }
  document.addEventListener("keydown", onKey);
  window.addEventListener("resize", refresh);
  const before = kept();
  if (before && before.session && (before.rater || null) === raterFromUrl) {
    session = before.session;
    if (raterFromUrl) await next("");
    else show("again");
  } else {
    startOver("");
  }
}

main();
