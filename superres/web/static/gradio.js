// What the elements ask of Gradio: a photo is uploaded, and the server's view of the model's input (#preview) comes back, or why
// there is none. The static page has superres/web/site/site.js in its place.
"use strict";
(() => {
  const tell = (name, detail) => document.dispatchEvent(new CustomEvent(`superres-${name}`, {detail}));
  let taken, latest, reading = null;  // the last view; what the visitor chose last; and what the server reads, one after another

  document.addEventListener("superres-example", ({detail}) => give({example: detail}));
  document.addEventListener("superres-photo", async ({detail: photo}) => {
    const {most_bytes: most} = JSON.parse(document.querySelector("superres-paint").dataset.view), body = new FormData();
    latest = photo;
    await null;  // the box hears of the photo first
    if (photo.size > most) return refuse(`the file has ${(photo.size / 1e6).toFixed(1)} MB, and a photo may have ${Math.floor(most / 1e6)} MB; reduce it first`);
    body.append("files", photo);
    const answer = await fetch("gradio_api/upload", {method: "POST", body}).catch(() => null);
    const [path] = answer?.ok ? await answer.json() : [];
    if (photo !== latest) return;  // another one was chosen meanwhile
    if (path) give({path, meta: {_type: "gradio.FileData"}});
    else refuse("the file could not be sent to the server; check that it is a file and the connection, and choose it again");
  });

  // No picture is chosen: the buttons draw none.
  function refuse(text) {
    tell("refused", text);
    give({});
  }

  function give(value) {
    latest = value;
    if (!reading) tell("given", reading = value);
  }

  // The server has read a picture, or could not. A view does not say of which picture it is: that of an earlier one is not told.
  function answer(name, detail) {
    const read = reading;
    reading = null;
    if (!read || read === latest && Object.keys(read).length) tell(name, detail);
    else if (read !== latest && !(latest instanceof File)) give(latest);
  }

  document.addEventListener("superres-unread", () => answer("refused", "the server did not answer; check the connection, and choose the file again"));
  document.addEventListener("superres-asking", () => { if (reading) tell("given", reading); });  // the page's parts may come later

  // Tell the box of a new view.
  function take() {
    const input = document.querySelector("#preview .sr-input"), image = input?.querySelector("img");
    if (!input || input.dataset.turn === taken) return;
    taken = input.dataset.turn;
    if (image && input.dataset.offered && reading?.path) answer("offered");  // a visitor's photo: its frame is accepted first
    else if (image) answer("input", {uri: input.dataset.cells ?? image.src, truth: input.dataset.truth});
    else answer("refused", input.dataset.refused);
  }

  document.addEventListener("superres-ready", () => {
    taken = null;
    take();
  });
  // Gradio lays out the page's parts one after another: the view may come later than the box.
  new MutationObserver(take).observe(document, {childList: true, subtree: true, attributeFilter: ["data-turn"]});
})();
