// What the elements ask of Gradio: a photo is uploaded, and the server's view of the model's input (#preview) comes back, or why
// there is none. The static page has superres/web/site/site.js in its place.
"use strict";
(() => {
  const tell = (name, detail) => document.dispatchEvent(new CustomEvent(`superres-${name}`, {detail}));
  let taken, latest;

  document.addEventListener("superres-example", () => { latest = null; });
  document.addEventListener("superres-photo", async ({detail: photo}) => {
    const {most_bytes: most} = JSON.parse(document.querySelector("superres-paint").dataset.view), body = new FormData();
    latest = photo;
    await null;  // the box hears of the photo first
    if (photo.size > most) return tell("refused", `the file has ${(photo.size / 1e6).toFixed(1)} MB, and a photo may have ${Math.floor(most / 1e6)} MB; reduce it first`);
    body.append("files", photo);
    const answer = await fetch("gradio_api/upload", {method: "POST", body}).catch(() => null);
    const [path] = answer?.ok ? await answer.json() : [];
    if (photo !== latest) return;  // another one was chosen meanwhile
    if (path) tell("given", {path, meta: {_type: "gradio.FileData"}});
    else tell("refused", "the file could not be sent to the server; check that it is a file and the connection, and choose it again");
  });

  // Tell the box of a new view.
  function take() {
    const input = document.querySelector("#preview .sr-input"), image = input?.querySelector("img");
    if (!input || input.dataset.turn === taken) return;
    taken = input.dataset.turn;
    if (image) tell("input", {uri: input.dataset.cells ?? image.src, truth: input.dataset.truth});
    else tell("refused", input.dataset.refused);
  }

  document.addEventListener("superres-ready", () => {
    taken = null;
    take();
  });
  // Gradio lays out the page's parts one after another: the view may come later than the box.
  new MutationObserver(take).observe(document, {childList: true, subtree: true, attributeFilter: ["data-turn"]});
})();
