// What a tab's results are: those of a decoding that runs, or stale ones. superres/web/controls.py binds the events.
"use strict";
(() => {
  const tab = view => document.getElementById(view).closest(".sr-columns");
  const notes = view => document.querySelectorAll(`#${view} > .sr-stale`);

  const nameOf = fold => `${fold.closest(".block").id}: ${fold.querySelector("summary").textContent}`;
  const opened = new Set();

  function say(view, text) {
    const note = document.createElement("p");
    note.className = "sr-stale";
    note.role = "status";
    note.textContent = text;
    document.getElementById(view).prepend(note);
  }

  // Mark the results as stale; without results there is nothing to mark.
  function stale(view) {
    if (!document.querySelector(`#${view} .sr-result`) || notes(view).length) return;
    say(view, "The input or a setting has changed since this result.");
  }

  function begin(view) {
    notes(view).forEach(note => note.remove());
    tab(view).dataset.running = "";
    const element = document.getElementById(view);
    if (element.getBoundingClientRect().top > 0.6 * innerHeight) element.scrollIntoView();  // it is below on a phone
  }

  function end(view) {
    delete tab(view).dataset.running;
    for (const fold of document.querySelectorAll(`#${view} .sr-fold`)) fold.open = opened.has(nameOf(fold));
  }

  // What stands there is of an earlier decoding, or unfinished; it must not pass for the result.
  function fail(view) {
    end(view);
    if (document.querySelector(`#${view} .sr-result`) && !notes(view).length) say(view, "The decoding failed: this is not its result.");
  }

  function stop(view) {
    end(view);
    notes(view).forEach(note => note.remove());
    say(view, "Stopped before the end.");
  }

  // Details that the visitor has opened stay open with the next results.
  document.addEventListener("click", event => {
    const fold = event.target.closest?.(".sr-fold > summary")?.parentElement;
    if (fold) fold.open ? opened.delete(nameOf(fold)) : opened.add(nameOf(fold));
  });

  Object.assign(superres, {stale, begin, end, fail, stop});
})();
