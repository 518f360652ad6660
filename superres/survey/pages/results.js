"use strict";
// The owner's page, which requests the report every REFRESH_MS.

const byId = (id) => document.getElementById(id);
const REFRESH_MS = 15000;
let owner = null;

async function ask(path) {
  const answer = await fetch(path, {headers: {"X-Owner": owner}}).catch(() => {
    throw new Error("the server does not respond");
  });
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

// Show a sentence; the server's own messages are lines without a capital and a full stop.
function say(text) {
  byId("message").textContent = text && text[0].toUpperCase() + text.slice(1) + (/[.…!?]$/.test(text) ? "" : ".");
}

function element(tag, text, parent) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  parent.append(made);
  return made;
}

// Add text whose lines break only between words: browsers would break an option after its first hyphen.
function addWords(text, parent) {
  for (const word of text.split(" ")) {
    element("span", word, parent).className = "word";
    parent.append(" ");
  }
}

function count(number, noun) {
  return `${number.toLocaleString()} ${noun}${number === 1 ? "" : "s"}`;
}

function drawSection(section, parent) {
  element("h2", section.heading, parent);
  const wide = element("div", "", parent);  // scrolls sideways on a narrow screen, also by keyboard
  wide.className = "wide";
  wide.tabIndex = 0;
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", section.heading);
  const table = element("table", "", wide);
  const head = element("tr", "", element("thead", "", table));
  for (const title of section.header) element(title ? "th" : "td", title, head).scope = "col";
  const body = element("tbody", "", table);
  for (const cells of section.rows) {
    const row = element("tr", "", body);
    cells.forEach((cell, column) => { element(column ? "td" : "th", cell, row).scope = column ? "" : "row"; });
  }
  if (section.note) element("p", section.note, parent);
}

async function draw() {
  const report = await (await ask("api/report")).json();
  const narrow = window.matchMedia("(max-width: 600px)").matches;
  const picture = URL.createObjectURL(await (await ask(`api/plot.png?narrow=${narrow}`)).blob());
  URL.revokeObjectURL(byId("plot").src);
  byId("plot").src = picture;
  byId("plot").hidden = !report.votes;
  byId("summary").textContent = `${count(report.votes, "vote")} of ${count(report.raters, "rater")} in ${report.study}, as of ${new Date().toLocaleTimeString()}. The question was: ${report.question}`;
  const sentences = document.createElement("div");
  for (const sentence of report.sentences) element("p", sentence, sentences);
  byId("sentences").replaceChildren(sentences);
  byId("warnings").replaceChildren();
  for (const warning of report.warnings) {
    const item = element("li", "", byId("warnings"));
    element("strong", warning.what, item);
    addWords(warning.do, item);
    if (warning.command) addWords(warning.command, element("code", "", item));
  }
  const sections = document.createElement("div");
  for (const section of report.sections) drawSection(section, sections);
  byId("sections").replaceChildren(sections);
  byId("login").hidden = true;
  byId("report").hidden = false;
  say("");
}

async function refresh() {
  try {
    await draw();
  } catch (error) {
    say(error.message);
    if (byId("report").hidden) return;  // the owner can correct a wrong token
  }
  setTimeout(refresh, REFRESH_MS);
}

async function download(path, name) {
  const link = document.createElement("a");
  try {
    link.href = URL.createObjectURL(await (await ask(path)).blob());
  } catch (error) {
    return say(error.message);
  }
  link.download = name;
  link.click();
  return URL.revokeObjectURL(link.href);
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  owner = byId("owner").value.trim();
  refresh();
});
byId("csv").addEventListener("click", () => download("api/votes.csv", "votes.csv"));
byId("jsonl").addEventListener("click", () => download("api/votes.jsonl", "votes.jsonl"));
byId("md").addEventListener("click", () => download("api/report.md", "report.md"));
byId("login").hidden = false;  // shown after its handlers are installed
