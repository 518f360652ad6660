// <superres-viewer data-view="..."> shows any two pictures at the sides of a divider, and zooms both alike. Of several
// samples, a sheet below chooses the right one. <superres-kept> is the strip of this browser tab's results.
// superres/web/upscale_tab.py writes the data. Only a finished face is asked of the server (superres/web/finishing.py).
"use strict";
(() => {
  const {make, sentence, Drawn} = superres;
  const FIRST = 0;  // first place of the divider in percent: the whole face is seen
  const LARGEST = 8;  // factor of the zoom
  const REACH = 22;  // pixels from the divider's handle within which a drag moves the divider; half the handle
  const NOTCH = 200;  // pixels of the wheel that zoom by a factor of e
  const MOVES = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
  const STEP = 0.1;  // share of the frame that an arrow key moves the part in view
  const MOST = 24;  // pictures in the strip
  const STORE = "superres-kept";
  const HINT = "Zoom with Ctrl and the wheel, two fingers, or + and -. Move the part in view by a drag, or Shift and the arrow keys.";
  let viewers = 0, kept = [];  // pictures in the strip, the newest first
  let isSharp = false;  // whether pixels are shown as squares, in all viewers
  let isFinishing = true;  // whether the visitor wants finished faces; the next page begins anew
  try {
    kept = JSON.parse(sessionStorage.getItem(STORE)) ?? [];
  } catch {
    // The browser stores nothing: the strip lasts until the page is left.
  }

  const clamp = (value, least, most) => Math.min(Math.max(value, least), most);
  const distance = (one, other) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
  const option = ({name}) => make("option", {value: name}, name);
  const download = face => make("a", {class: "sr-download", download: face.file, href: face.uri}, "Download PNG");

  function button(text, action, attributes = {}) {
    const made = make("button", {type: "button", ...attributes}, text);
    made.addEventListener("click", action);
    return made;
  }

  function change(pictures) {
    kept = pictures;
    try {
      sessionStorage.setItem(STORE, JSON.stringify(kept));
    } catch {
      // It is full or closed.
    }
    document.dispatchEvent(new CustomEvent("superres-kept"));
  }

  function keep({made, note, file, uri}) {
    if (kept.some(picture => picture.uri === uri)) return;
    const number = 1 + Math.max(0, ...kept.map(picture => picture.number));
    change([{number, name: `${number}: ${made}`, note, file, uri}, ...kept].slice(0, MOST));
  }

  class Viewer extends Drawn {
    fill = () => this.list();
    hear = ({detail}) => this.answer(detail);

    connectedCallback() {
      super.connectedCallback();
      document.addEventListener("superres-kept", this.fill);
      document.addEventListener("superres-answer", this.hear);
    }

    disconnectedCallback() {
      super.disconnectedCallback();
      document.removeEventListener("superres-kept", this.fill);
      document.removeEventListener("superres-answer", this.hear);
      queueMicrotask(() => this.isConnected || this.settle());
    }

    draw(view) {
      const isNew = this.taken !== this.dataset.view;  // Gradio may only have moved the element
      if (isNew) {
        this.settle();
        Object.assign(this, {taken: this.dataset.view, told: "", question: undefined, finished: undefined, awaits: false});
      }
      this.view = view;
      if (this.finished) view.faces.push(this.finished);
      this.face = this.finished && isFinishing ? this.finished : view.faces[0];
      [this.left, this.right] = [["left", "before"], ["right", "after"]].map(([name, image]) => {
        const side = {image: make("img", {class: `sr-${image}`}), name: make("span", {class: `sr-name sr-${name}`}), select: make("select")};
        side.select.addEventListener("change", () => this.show(side, this.pictures[side.select.selectedIndex]));
        return side;
      });
      this.divider = make("input", {type: "range", min: 0, max: 100, "aria-label": "Divider between the two pictures"});
      this.divider.value = FIRST;
      this.divider.addEventListener("input", () => this.move(this.divider.valueAsNumber));
      this.invites = make("span", {class: "sr-name sr-invite", "aria-hidden": "true"});
      this.sharp = make("input", {type: "checkbox"});
      this.sharp.checked = isSharp;
      this.sharp.addEventListener("change", () => this.sharpen(this.sharp.checked));
      this.divider.addEventListener("keydown", event => this.key(event));
      this.frame = make("div", {class: "sr-split"}, this.right.image, this.left.image, this.left.name, this.right.name, this.invites, this.divider);
      this.sharpen(isSharp);
      this.listen();
      this.factor = make("output", {"aria-label": "Zoom"});
      this.link = make("span");
      this.keeps = button("Keep this face", () => keep(this.face), {class: "sr-keep"});
      this.caption = make("p", {class: "sr-chosen", role: "status"});
      this.radios = [];
      this.append(this.frame, this.caption,
        make("div", {class: "sr-sides"}, make("label", {}, "Left side", this.left.select), make("label", {}, "Right side", this.right.select)),
        make("div", {class: "sr-under"},
          make("span", {class: "sr-zoom"}, button("\u2212", () => this.zoomTo(this.zoom - 1), {"aria-label": "Zoom out"}), this.factor,
            button("+", () => this.zoomTo(this.zoom + 1), {"aria-label": "Zoom in"})),
          make("label", {class: "sr-squares"}, this.sharp, "Pixels"),
          make("span", {class: "sr-links"}, this.link, this.keeps)),
        make("p", {class: "sr-hint", id: `sr-zoom-${++viewers}`}, HINT));
      this.divider.setAttribute("aria-describedby", `sr-zoom-${viewers}`);
      if (view.faces.length > 1) this.append(this.sheet());
      if (view.finish) this.frame.after(this.finishing());
      this.look(0, 0, 1);
      this.list();
      if (isNew && !this.closest("superres-kept")) this.take();
    }

    // The choice between the face as the model drew it and the finished one, which the server draws when it is asked.
    finishing() {
      const name = `sr-finish-${viewers}`, actions = [() => this.show(this.right, this.view.faces[0]), () => this.finish()];
      const choices = ["As the model drew it", "Finished"].map((text, at) => {
        const radio = this.radios[at] = make("input", {type: "radio", name});
        radio.addEventListener("change", actions[at]);
        return make("label", {}, radio, text);
      });
      return make("fieldset", {class: "sr-finish"}, make("legend", {}, "The face"), ...choices);
    }

    // Show the finished face as soon as it is there; the drawn one stays until then.
    finish() {
      if (this.finished) return this.show(this.right, this.finished);
      isFinishing = this.awaits = true;
      this.told = "Drawing the finished face\u2026";
      this.list();
      if (this.question) return;  // it is being drawn
      this.question = JSON.stringify({...this.view.finish, turn: ++viewers});
      document.dispatchEvent(new CustomEvent("superres-ask-finish", {detail: this.question}));
    }

    // Take the finished face; it is shown unless the visitor has chosen another picture since.
    answer({question, error, faces}) {
      if (!this.question || question !== this.question) return;
      const {awaits} = this;
      this.question = undefined;
      this.awaits = false;
      if (error) {
        this.told = awaits ? sentence(error) : "";
        this.settle();
      } else {
        const [{made, before}] = this.view.faces;
        this.finished = {...faces[0], made: `${made}, finished`, before};
        this.view.faces.push(this.finished);
        if (awaits) {
          this.settle(this.finished);
          this.show(this.right, this.finished);
        }
      }
      this.list();
    }

    sheet() {
      const name = `sr-sheet-${viewers}`;
      const choices = this.view.faces.map((face, at) => {
        const radio = this.radios[at] = make("input", {type: "radio", name});
        radio.addEventListener("change", () => this.show(this.right, face));
        return make("label", {class: "sr-choice"}, radio, make("img", {src: face.uri, alt: face.name}));
      });
      return make("fieldset", {class: "sr-sheet"}, make("legend", {}, "Choose a sample, the likeliest first"), ...choices);
    }

    // The strip takes one face of a new result, unless it is a sheet to choose from, and needs no viewer of its own.
    take() {
      document.querySelector("superres-kept superres-viewer")?.remove();
      if (this.view.faces.length > 1) return;
      this.due = this.face;
      if (this.view.finish && isFinishing) this.finish();
      else this.settle();
    }

    // Give the strip the face that is due: the drawn one, or the finished one that is shown in its place.
    settle(face = this.due) {
      if (!this.due) return;
      this.due = undefined;
      keep(face);
    }

    // Show a picture on a side. On the right side, a face brings its own pictures, such as its earlier stages.
    show(side, picture) {
      side.chosen = picture.name;
      if (side === this.right) {
        Object.assign(this, {awaits: false, told: ""});
        if (this.view.faces.includes(picture)) {
          this.face = picture;
          if (this.view.finish) isFinishing = picture === this.finished;
        }
        this.settle();
      }
      this.list();
    }

    // List the pictures for both sides; each side keeps its kind of picture.
    list() {
      const {before, faces} = this.view, own = [...before, ...this.face.before, ...faces];
      const others = kept.filter(({uri}) => own.every(picture => picture.uri !== uri));
      this.pictures = [...own, ...others];
      const [left, right] = [[this.left, this.pictures[0]], [this.right, this.face]].map(([side, first]) => {
        const picture = this.pictures.find(({name}) => name === side.chosen) ?? first;
        side.select.replaceChildren(...own.map(option), ...others.length ? [make("optgroup", {label: "Kept results"}, ...others.map(option))] : []);
        side.select.value = side.name.textContent = picture.name;
        side.image.src = picture.uri;
        return picture;
      });
      this.left.image.alt = `${left.name}, left of the divider`;
      this.right.image.alt = right.name;
      this.caption.textContent = [right.note, this.told].filter(Boolean).join(". ");
      this.link.replaceChildren(...right.file ? [download(right)] : []);
      this.radios.forEach((radio, at) => radio.checked = this.awaits ? at === 1 : faces[at] === right);
      this.keeps.textContent = kept.some(({uri}) => uri === right.uri) ? "Kept below" : "Keep this face";
      this.keeps.hidden = faces.length === 1 && !this.view.finish || !faces.includes(right);
      this.move(this.divider.valueAsNumber);
    }

    listen() {
      const held = new Map();  // the last event of each pointer that is down
      let movesDivider;
      this.frame.addEventListener("pointerdown", event => {
        if (event.button > 0) return;
        event.preventDefault();  // neither selects nor drags the image itself
        this.divider.focus({focusVisible: false});
        this.frame.setPointerCapture(event.pointerId);
        held.set(event.pointerId, event);
        movesDivider = held.size === 1 && (this.zoom === 1 || this.isNear(event));
        if (movesDivider) this.move(100 * this.placeOf(event)[0]);
      });
      this.frame.addEventListener("pointermove", event => {
        const last = held.get(event.pointerId), other = [...held.values()].find(({pointerId}) => pointerId !== event.pointerId);
        if (!last) return;
        held.set(event.pointerId, event);
        const [x, y] = this.placeOf(event), [lastX, lastY] = this.placeOf(last);
        if (other) this.zoomTo(this.wanted * distance(event, other) / Math.max(distance(last, other), 1), ...this.placeOf(other));
        else if (movesDivider) this.move(100 * x);
        else this.look(this.x + lastX - x, this.y + lastY - y);
      });
      this.frame.addEventListener("lostpointercapture", event => held.delete(event.pointerId));
      this.frame.addEventListener("wheel", event => {
        if (!event.ctrlKey) return;
        event.preventDefault();  // the page keeps its size
        this.zoomTo(this.wanted * Math.exp(-event.deltaY / NOTCH), ...this.placeOf(event));
      }, {passive: false});
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.shiftKey && event.key in MOVES) this.look(...[this.x, this.y].map((at, axis) => at + STEP * MOVES[event.key][axis]));
      else if (event.key === "+" || event.key === "-") this.zoomTo(this.zoom + (event.key === "+" ? 1 : -1));
      else return;
      event.preventDefault();
    }

    // Return where a pointer is, in shares of the frame's sides.
    placeOf({clientX, clientY}) {
      const {left, top, width, height} = this.frame.getBoundingClientRect();
      return [(clientX - left) / width, (clientY - top) / height];
    }

    isNear(event) {
      const width = this.frame.clientWidth, handle = clamp(this.divider.valueAsNumber / 100 * width, REACH, width - REACH);
      return Math.abs(this.placeOf(event)[0] * width - handle) <= REACH;
    }

    move(percent) {
      this.divider.value = percent;  // in whole numbers from 0 to 100
      this.divider.setAttribute("aria-valuetext", `${this.divider.value} % ${this.left.name.textContent}`);
      this.frame.style.setProperty("--split", `${this.divider.value}%`);
      const isWhole = this.divider.value === "0";  // the face hides the other picture, and its name
      this.left.name.hidden = isWhole;
      this.invites.hidden = !isWhole;
      this.invites.textContent = `Drag to compare with: ${this.left.name.textContent}`;
    }

    sharpen(isWanted) {
      isSharp = isWanted;
      this.frame.classList.toggle("sr-sharp", isSharp);
    }

    // Zoom to the whole factor next to the wanted one, so that pixels have equal sizes. The place (x, y) stays where it is.
    zoomTo(wanted, x = 0.5, y = 0.5) {
      const factor = clamp(wanted, 1, LARGEST), zoom = Math.round(factor);
      this.look((this.x + x) * zoom / this.zoom - x, (this.y + y) * zoom / this.zoom - y, zoom);
      this.wanted = factor;
    }

    // Show the part of the zoomed pictures that begins at (x, y), in sides of the frame.
    look(x, y, zoom = this.zoom) {
      [this.x, this.y] = [x, y].map(at => clamp(at, 0, zoom - 1));
      this.zoom = this.wanted = zoom;
      for (const [name, value] of [["zoom", zoom], ["x", `${100 * this.x}%`], ["y", `${100 * this.y}%`]]) this.frame.style.setProperty(`--${name}`, value);
      this.frame.classList.toggle("sr-zoomed", zoom > 1);
      this.factor.textContent = `${zoom}x`;
    }
  }

  class Kept extends HTMLElement {
    fill = () => this.draw();

    connectedCallback() {
      this.strip = make("ul");
      this.replaceChildren(make("h3", {}, "Kept results"),
        make("p", {class: "sr-hint"}, "Choose one to see it on the left side. This browser tab keeps them until you close it."), this.strip);
      document.addEventListener("superres-kept", this.fill);
      this.draw();
    }

    disconnectedCallback() {
      document.removeEventListener("superres-kept", this.fill);
    }

    // Change only what is new or gone, so that the focus stays.
    draw() {
      const items = [...this.strip.children], shown = new Set(items.map(({picture}) => picture));
      items.filter(({picture}) => !kept.includes(picture)).forEach(item => item.remove());
      this.strip.prepend(...kept.filter(picture => !shown.has(picture)).map(picture => this.item(picture)));
      this.hidden = !kept.length;
    }

    item(picture) {
      const {name, uri} = picture;
      const item = make("li", {}, button(make("img", {src: uri, alt: ""}), () => this.show(picture), {class: "sr-thumb", "aria-label": `Show ${name}`}),
        make("span", {}, name), download(picture), button("Remove", () => {
          const next = item.nextElementSibling ?? item.previousElementSibling;
          change(kept.filter(one => one !== picture));
          next?.lastElementChild.focus();
        }, {"aria-label": `Remove ${name}`}));
      return Object.assign(item, {picture});
    }

    // Show a picture on the left side of the page's viewer, or in a viewer below the strip. The divider takes the focus, so it comes into view.
    show(picture) {
      let viewer = document.querySelector("superres-viewer");
      if (viewer) viewer.show(viewer.left, viewer.pictures.find(({uri}) => uri === picture.uri));
      else {
        viewer = make("superres-viewer", {"data-view": JSON.stringify({before: [], faces: [{...picture, before: []}]})});
        this.append(viewer);
      }
      viewer.divider.focus();
    }
  }

  for (const [name, element] of [["superres-viewer", Viewer], ["superres-kept", Kept]]) {
    if (!customElements.get(name)) customElements.define(name, element);
  }
})();
