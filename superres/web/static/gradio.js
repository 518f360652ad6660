// What the elements ask of Gradio: a photo goes into the input of its hidden button (#choose), and the server's view of the
// model's input (#preview) comes back. The static page has superres/web/site/site.js in its place.
"use strict";
(() => {
  const INPUT = "input[type=file]:has(~ #choose)";
  let taken;

  document.addEventListener("superres-photo", ({detail: photo}) => {
    const input = document.querySelector(INPUT), list = new DataTransfer();
    list.items.add(photo);
    input.files = list.files;
    input.dispatchEvent(new Event("change", {bubbles: true}));
  });

  // Tell the box of a new view.
  function take() {
    const input = document.querySelector("#preview .sr-input"), image = input?.querySelector("img");
    if (!image || input.dataset.turn === taken) return;
    taken = input.dataset.turn;
    document.dispatchEvent(new CustomEvent("superres-input", {detail: {uri: image.src, truth: input.dataset.truth}}));
  }

  document.addEventListener("superres-ready", () => {
    taken = null;
    take();
  });
  // Gradio lays out the page's parts one after another: the view may come later than the box.
  new MutationObserver(take).observe(document, {childList: true, subtree: true, attributeFilter: ["data-turn"]});
})();
