// The state of each tab's results, in one table for all tabs, and the bar that says it. superres/web/controls.py binds the events.
"use strict";
(() => {
  // The next state, by state and event; an event without an edge changes nothing. So the late end of a stopped decode is
  // ignored. After Stop, Gradio reports a failure once it has let go of the decode: another one begins only then, since
  // Gradio would ignore it before, or lose track of it.
  const EDGES = {
    empty: {begin: "waiting"},
    waiting: {turn: "running", change: "waiting", fail: "failed", stop: "stopping"},
    running: {change: "running", end: "fresh", fail: "failed", stop: "stopping"},
    fresh: {begin: "waiting", change: "stale"},
    stale: {begin: "waiting"},
    failed: {begin: "waiting"},
    stopping: {fail: "stopped"},
    stopped: {begin: "waiting"},
  };
  const LATE = 300;  // milliseconds after which the page says that it waits
  const CHANGED = "The input or a setting has changed since this result.";
  const UNANSWERED = "The server did not answer; try again in a minute.";

  const views = new Map();
  const elementOf = view => document.getElementById(view);
  const wordsOf = view => document.querySelector(`.sr-state[data-view="${view}"]`);
  const ask = (name, view) => document.dispatchEvent(new CustomEvent(`superres-${name}-${view}`));
  const secondsSince = time => (performance.now() - time) / 1000;
  const isUnderWay = one => one.state === "waiting" || one.state === "running";
  const isLate = one => secondsSince(one.begun) * 1000 >= LATE;

  function of(view) {
    if (!views.has(view)) views.set(view, {view, state: "empty"});
    return views.get(view);
  }

  // Follow the edge of an event; return whether there is one.
  function send(view, event) {
    const one = of(view), next = EDGES[one.state][event];
    if (!next) return false;
    one.state = next;
    if (event === "begin") Object.assign(one, {begun: performance.now(), turned: null, isChanged: false, place: undefined});
    else if (event === "turn") one.turned = performance.now();
    else if (event === "end") one.seconds = secondsSince(one.begun);
    else if (event === "change" && isUnderWay(one)) one.isChanged = true;
    clearTimeout(one.timer);
    if (isUnderWay(one)) tick(one);
    else draw(one);
    return true;
  }

  // Say the seconds and the place while a decode waits or runs.
  function tick(one) {
    draw(one);
    if (one.state === "waiting" && isLate(one)) ask("place", one.view);
    const since = secondsSince(one.turned ?? one.begun);
    one.timer = setTimeout(() => tick(one), one.state === "waiting" && !isLate(one) ? LATE : 1000 * (1 - since % 1));
  }

  function begin(view, outputs) {
    if (!send(view, "begin")) throw new Error("a decode is under way");  // so that Gradio begins none
    comeIntoView(view);
    return Array(outputs).fill("");  // what an earlier decode has reported
  }

  // The results may be below what the visitor sees, or the visitor at the end of long results.
  function comeIntoView(view) {
    const {top} = elementOf(view).getBoundingClientRect();
    if (top < 0 || top > 0.6 * innerHeight) elementOf(view).scrollIntoView();
  }

  function change(view) {
    send(view, "change");
  }

  // What the server tells of a decode: that it has its turn; the reason of a failure is taken by `fail`.
  function report(view, text) {
    if (text === "turn") send(view, "turn");
  }

  function place(view, before) {
    of(view).place = before;
    if (of(view).state === "waiting") draw(of(view));
  }

  function end(view) {
    const one = of(view);
    send(view, "turn");  // it may come together with the end
    if (!send(view, "end")) return;
    for (const fold of document.querySelectorAll(`#${view} .sr-fold`)) fold.open = opened.has(nameOf(fold));
    if (one.isChanged) send(view, "change");
  }

  function fail(view, text) {
    const one = of(view);
    if (isUnderWay(one)) one.reason = text && text !== "turn" ? superres.sentence(text) : UNANSWERED;
    send(view, "fail");
  }

  function stop(view) {
    if (send(view, "stop")) ask("stop", view);
  }

  // The bar's words: those that a screen reader says, and the seconds.
  function wordsFor(one, verb) {
    const seconds = Math.floor(secondsSince(one.turned ?? one.begun)), since = seconds ? `, ${seconds} s` : "";
    if (one.state === "waiting") return isLate(one) ? [waitingFor(one.place), since] : ["", ""];
    if (one.state === "running") return [verb, since];
    if (one.state === "fresh") return [`Done in ${one.seconds.toFixed(1)} s`, ""];
    const words = {stale: CHANGED, stopping: "Stopping", stopped: "Stopped before the end."};
    return [words[one.state] ?? "", ""];
  }

  // `place` is the number of requests before the visitor's; null if the server has begun with it, undefined if it has not answered.
  function waitingFor(place) {
    if (place === undefined) return "Waiting";
    if (place === null) return "Starting";
    return place ? `Waiting: ${place} ${place === 1 ? "is" : "are"} before you` : "Waiting: you are next";
  }

  // Why there is no result, above an earlier one; all else is said in the bar.
  function noteFor(one) {
    if (one.state !== "failed") return "";
    return `${one.reason}${document.querySelector(`#${one.view} .sr-result`) ? " The result below is an earlier one." : ""}`;
  }

  // Results that are not those of the input and the settings, or not whole, turn pale.
  const isOld = one => !["empty", "running", "fresh"].includes(one.state);

  function draw(one) {
    const words = wordsOf(one.view), bar = words.closest(".sr-actions"), focused = document.activeElement;
    const stop = bar.querySelector("[id^=stop]"), hadFocus = bar.contains(focused);
    if (bar.dataset.state !== one.state) bar.dataset.state = elementOf(one.view).dataset.state = one.state;
    if (hadFocus && !focused.offsetParent) {  // another button has taken the place of the one with the focus
      if (stop.offsetParent) one.pressed = focused;
      (stop.offsetParent ? stop : one.pressed ?? bar.querySelector("button")).focus({preventScroll: true});
    }
    stop.ariaDisabled = String(one.state === "stopping");
    wordsFor(one, words.dataset.verb).forEach((text, at) => {
      if (words.children[at].textContent !== text) words.children[at].textContent = text;
    });
    if (one.state === "waiting" && !isLate(one)) return;
    elementOf(one.view).toggleAttribute("data-old", isOld(one));
    note(one.view, noteFor(one));
  }

  function note(view, text) {
    const old = document.querySelector(`#${view} > .sr-failed`);
    if (!text) old?.remove();
    else if (old) old.textContent = text;
    else elementOf(view).prepend(superres.make("p", {class: "sr-failed", role: "alert"}, text));
  }

  // Details that the visitor has opened stay open with the next results.
  const nameOf = fold => `${fold.closest(".block").id}: ${fold.querySelector("summary").textContent}`;
  const opened = new Set(["results: Step through it"]);
  document.addEventListener("click", event => {
    const fold = event.target.closest?.(".sr-fold > summary")?.parentElement;
    if (fold) fold.open ? opened.delete(nameOf(fold)) : opened.add(nameOf(fold));
  });

  Object.assign(superres, {EDGES, begin, change, report, place, end, fail, stop});
})();
