"use strict";
// The owner's page, which requests the report every REFRESH_MS.

const byId = (id) => document.getElementById(id);
const REFRESH_MS = 15000;
let owner = null;

async function ask(path) {
  const answer = await fetch(path, {headers: {"X-Owner": owner}});
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

function element(tag, text, parent) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  parent.append(made);
  return made;
}

function drawSection(section, parent) {
  element("h2", section.heading, parent);
  const wide = element("div", "", parent);
  wide.className = "wide";
  const table = element("table", "", wide);
  const head = element("tr", "", element("thead", "", table));
  for (const title of section.header) element("th", title, head);
  const body = element("tbody", "", table);
  for (const cells of section.rows) {
    const row = element("tr", "", body);
    for (const cell of cells) element("td", cell, row);
  }
  if (section.note) element("p", section.note, parent);
}

async function draw() {
  const report = await (await ask("api/report")).json();
  const picture = URL.createObjectURL(await (await ask("api/plot.png")).blob());
  URL.revokeObjectURL(byId("plot").src);
  byId("plot").src = picture;
  byId("summary").textContent = `${report.study}: ${report.question} ${report.votes} votes of ${report.raters} raters, as of ${new Date().toLocaleTimeString()}`;
  const sentences = document.createElement("div");
  for (const sentence of report.sentences) element("p", sentence, sentences);
  byId("sentences").replaceChildren(sentences);
  byId("warnings").replaceChildren();
  for (const warning of report.warnings) {
    const item = element("li", "", byId("warnings"));
    element("strong", warning.what, item);
    item.append(warning.do);
  }
  const sections = document.createElement("div");
  for (const section of report.sections) drawSection(section, sections);
  byId("sections").replaceChildren(sections);
  byId("login").hidden = true;
  byId("report").hidden = false;
  byId("message").textContent = "";
}

async function refresh() {
  try {
    await draw();
  } catch (error) {
    byId("message").textContent = error.message;
    if (byId("report").hidden) return;  // the owner can correct a wrong token
  }
  setTimeout(refresh, REFRESH_MS);
}

async function download(path, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await (await ask(path)).blob());
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
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
