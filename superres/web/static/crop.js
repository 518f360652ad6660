// <superres-crop data-photo="..."> frames a square of a photo; superres/web/crops.py or ../site/site.js writes its data.
// Squares are left, top and side in pixels of the photo, and degrees clockwise about their centre. While a photo is framed, the frame
// has the place of the paint box. The event superres-square has the square that the visitor uses, and superres-input then its pixels;
// superres-offered says that a photo has no square yet, and superres-back that the visitor uses none of it.
"use strict";
(() => {
  const {make} = superres;
  const CORNERS = {"nw": [-1, -1], "ne": [1, -1], "sw": [-1, 1], "se": [1, 1]};
  const FIELDS = ["Left, pixels", "Top, pixels", "Side, pixels", "Turn, degrees"];
  const SNAP = 5;  // degrees
  const COPY = 768, MARGIN = 0.5;  // longest side of the copy that is looked at, in pixels; and its margin around it, as a share
  const LOOK = 8, FACE = 72;  // pixels of the copy across one of the input; of the picture of a face, a side
  const KEYS = `Keys on the frame: arrows move it by 1 %, with Shift by 5 %; + and \u2212 resize it; Home makes it as large as the photo allows; \
comma and full stop turn it by 1 degree; Enter uses it, and Escape goes back. The round handle turns it, with Shift to a multiple of ${SNAP} \
degrees; a double click makes it upright.`;
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const turned = ([x, y], degrees) => {
    const cos = Math.cos(degrees * Math.PI / 180), sin = Math.sin(degrees * Math.PI / 180);
    return [cos * x - sin * y, sin * x + cos * y];
  };
  // Return the place, relative to a square's centre, of its corner, or of its centre where `across` and `down` are 0.
  const cornerOf = ([, , side, turn], across, down) => turned([across * side / 2, down * side / 2], turn);
  const centreOf = ([left, top, side]) => [left + side / 2, top + side / 2];
  const degreesOf = ([x, y]) => Math.atan2(x, -y) * 180 / Math.PI;  // of a direction, clockwise from upwards
  const tell = (name, detail) => document.dispatchEvent(new CustomEvent(`superres-${name}`, {detail}));
  let current = null, offered = false;  // the photo that has a frame; and whether it waits for the visitor
  const written = square => (square[3] ? square : square.slice(0, 3)).join();  // as a crop setting

  // What a square that was found is called: in a sentence, and on a button.
  function namesOf({kind, uncertain, searched}, at, count) {
    if (kind === "face") {
      const button = count > 1 ? `Found face ${at + 1}` : "Found face";
      return {button, name: `${button}${count > 1 ? ` of ${count}` : ""} (${uncertain ? "uncertain, so the frame is upright" : "clear"})`};
    }
    if (kind === "aligned") return {name: "CelebA's crop of aligned pictures", button: "CelebA's crop"};
    return {name: searched ? "No face was found, so the centre" : "The centre", button: "Centre"};
  }

  // Return a small copy of a picture, whose edges are repeated around it, and its scale.
  function copyOf(image, width, height) {
    const scale = Math.min(COPY / Math.max(width, height), 1), [across, down] = [width, height].map(side => Math.max(Math.round(scale * side), 1));
    const margin = Math.round(MARGIN * Math.max(across, down)), copy = make("canvas", {width: across + 2 * margin, height: down + 2 * margin});
    const context = copy.getContext("2d"), inner = make("canvas", {width: across, height: down}), within = inner.getContext("2d");
    const spans = side => [[0, 1, 0, margin], [0, side, margin, side], [side - 1, 1, margin + side, margin]];
    within.imageSmoothingQuality = "high";
    within.fillStyle = "#fff";
    within.fillRect(0, 0, across, down);
    within.drawImage(image, 0, 0, across, down);
    context.imageSmoothingEnabled = false;
    for (const [x, wide, left, room] of spans(across)) {
      for (const [y, high, top, space] of spans(down)) context.drawImage(inner, x, y, wide, high, left, top, room, space);
    }
    return {copy, scale, margin};
  }

  class Crop extends HTMLElement {
    static observedAttributes = ["data-photo"];

    // Gradio turns the HTML of one photo into that of the next, and removes what this element would add: it adds to the paint box.
    attributeChangedCallback() {
      queueMicrotask(() => this.begin());
    }

    connectedCallback() {
      if (this.view) this.enterBox();
    }

    disconnectedCallback() {
      this.leaveBox();
      if (current === this) current = null;
    }

    begin() {
      if (!this.isConnected) return;
      this.leaveBox();
      this.data = JSON.parse(this.dataset.photo);
      this.held = this.copied = null;
      this.used = !offered;
      this.build();
      this.choose(this.data.crops[this.data.chosen].square);
      this.kept = this.square;
      this.enterBox();
    }

    // Add the frame to the paint box, which may come later.
    enterBox() {
      const box = document.querySelector(".sr-paint");
      if (!box) return document.addEventListener("superres-ready", () => queueMicrotask(() => { if (this.isConnected) this.enterBox(); }), {once: true});
      current = this;
      box.prepend(this.view);
      box.querySelector(".sr-cells").after(this.bar);
      this.show(offered);
    }

    leaveBox() {
      this.view?.parentElement?.removeAttribute("data-framing");
      this.view?.remove();
      this.bar?.remove();
    }

    // Show the frame in the place of the box, or the box.
    show(isOpen) {
      const box = this.view.parentElement, had = this.view.contains(document.activeElement);
      box?.toggleAttribute("data-framing", isOpen);
      this.again.textContent = this.used ? "Move the frame" : "Frame the photo";
      if (isOpen) {
        this.frame.focus({preventScroll: true});
        if (box) box.scrollIntoView({block: "nearest"});
        this.look();
      } else if (had) this.again.focus({preventScroll: true});
    }

    // Use the square: the box gets its pixels.
    accept() {
      this.used = true;
      this.kept = this.square;
      offered = false;
      this.show(false);
      tell("square", written(this.square));
    }

    // Go back to the box as it was.
    back() {
      const isNew = offered;
      offered = false;
      this.choose(this.kept);
      this.show(false);
      if (isNew) tell("back");
    }

    build() {
      const {width, height, least, crops, hint} = this.data, count = crops.length;
      this.names = crops.map((crop, at) => namesOf(crop, at, count));
      // Found squares may reach beyond the photo, and the visitor's as far as those.
      this.low = [0, 1].map(axis => Math.min(0, ...crops.map(({square}) => square[axis])));
      this.high = [0, 1].map(axis => Math.max([width, height][axis], ...crops.map(({square}) => square[axis] + square[2])));
      this.most = Math.min(...this.high.map((high, axis) => high - this.low[axis]));
      this.photo = make("img", {src: this.querySelector("img").src, alt: "Your photo", draggable: "false"});
      this.shade = make("div", {class: "sr-shade"});
      this.frame = make("div", {class: "sr-crop", role: "slider", tabindex: 0, "aria-label": "Crop of the photo",
        "aria-valuemin": least, "aria-valuemax": this.most, "aria-describedby": "sr-crop-keys"});
      for (const corner of Object.keys(CORNERS)) this.frame.append(make("div", {class: `sr-handle sr-${corner}`}));
      this.frame.append(make("div", {class: "sr-turn", title: "Turn"}));
      const outlines = count === 1 ? [] : crops.map(({square}, at) => {
        const outline = make("div", {class: "sr-found", "aria-hidden": "true"}, make("span", {}, String(at + 1)));
        outline.addEventListener("click", () => this.choose(square));
        this.place(outline, square);
        return outline;
      });
      const stage = make("div", {class: "sr-photo"}, make("div", {class: "sr-picture"}, this.photo, this.shade, ...outlines), this.frame);
      const shares = {left: -this.low[0], across: this.high[0] - this.low[0], above: -this.low[1], below: this.high[1] - height};
      for (const [name, value] of Object.entries(shares)) stage.style.setProperty(`--${name}`, value / width);
      stage.style.setProperty("--ratio", width / height);
      this.view = make("div", {class: "sr-framing", role: "group", tabindex: -1, "aria-label": "Frame the photo"}, stage, this.panel(hint));
      this.again = this.button("", () => this.show(true));
      this.bar = make("div", {class: "sr-framed"}, this.again);
      this.listen();
    }

    button(text, action, attributes = {}) {
      const button = make("button", {type: "button", ...attributes}, text);
      button.addEventListener("click", action);
      return button;
    }

    // Return what stands beside the photo: which face, what the model sees of it, and the ways on.
    panel(hint) {
      const {width, height, least, crops} = this.data, isSeveral = crops.length > 1;
      this.seen = make("canvas", {width: least, height: least, role: "img", "aria-label": `The ${least}x${least} pixels in the frame`});
      this.where = make("p", {class: "sr-where"});
      this.question = make("p", {class: "sr-question"}, "Is this a face? If it is not, the model still draws one: move and turn the frame, or choose another photo.");
      this.faces = crops.map(() => make("canvas", {width: FACE, height: FACE}));
      this.buttons = crops.map(({square}, at) => this.button(this.names[at].button, () => this.choose(square)));
      if (isSeveral) this.buttons.forEach((button, at) => button.prepend(this.faces[at]));
      this.upright = this.button("Upright", () => this.enter(3, 0));
      this.numbers = FIELDS.map((_, at) => {
        const input = make("input", {type: "number", step: at === 3 ? 0.1 : 1, min: [...this.low, least, -180][at], max: 180});
        input.addEventListener("change", () => this.enter(at, input.valueAsNumber));
        return input;
      });
      return make("div", {class: "sr-beside"},
        ...isSeveral ? [make("p", {role: "status"}, make("b", {}, "Which face? "), `${crops.length} were found. The model draws one.`)] : [],
        ...isSeveral ? [make("div", {class: "sr-buttons sr-which"}, ...this.buttons)] : [],
        make("div", {class: "sr-sees"}, this.seen, make("p", {}, `These ${least}x${least} pixels are all that the model sees.`)),
        make("div", {class: "sr-buttons"}, this.button("Use this face", () => this.accept(), {class: "sr-use"}), this.button("Back", () => this.back())),
        make("div", {class: "sr-buttons"}, ...isSeveral ? [] : this.buttons, this.upright, this.button("Another photo", superres.photo.choose)), this.where, this.question, ...hint ? [make("p", {class: "sr-hint"}, hint)] : [],
        make("details", {}, make("summary", {}, "Crop in numbers"),
          make("div", {class: "sr-numbers"}, ...this.numbers.map((input, at) => make("label", {}, make("span", {}, FIELDS[at]), input))),
          make("p", {class: "sr-hint", id: "sr-crop-keys"}, KEYS)));
    }

    listen() {
      this.view.addEventListener("keydown", event => { if (event.key === "Escape") this.back(); });
      this.frame.addEventListener("keydown", event => this.press(event));
      this.frame.addEventListener("pointerdown", event => this.grab(event));
      this.frame.addEventListener("pointermove", event => this.drag(event));
      for (const end of ["pointerup", "pointercancel"]) this.frame.addEventListener(end, event => this.release(event));
      this.frame.addEventListener("dblclick", () => this.enter(3, 0));
      this.photo.decode().then(() => {
        this.copied = copyOf(this.photo, this.data.width, this.data.height);
        this.faces.forEach((canvas, at) => this.paint(canvas, this.data.crops[at].square));
        this.look();
      }, () => {});
    }

    // Paint a square of the photo on a canvas.
    paint(canvas, [left, top, side, turn]) {
      const {copy, scale, margin} = this.copied, context = canvas.getContext("2d", {willReadFrequently: true}), by = canvas.width / side;
      context.resetTransform();
      context.imageSmoothingQuality = "high";
      context.translate(canvas.width / 2, canvas.height / 2);
      context.rotate(-turn * Math.PI / 180);
      context.scale(by, by);
      context.translate(-left - side / 2, -top - side / 2);
      context.drawImage(copy, -margin / scale, -margin / scale, copy.width / scale, copy.height / scale);
      return context;
    }

    // Show about what the model sees; the box gets the exact pixels.
    look() {
      if (!this.copied || !this.square) return;
      const {least} = this.data, side = LOOK * least;
      const {data} = this.paint(make("canvas", {width: side, height: side}), this.square).getImageData(0, 0, side, side);
      const sums = new Float64Array(4 * least * least), image = new ImageData(least, least);
      data.forEach((value, at) => {
        const pixel = at >> 2, x = pixel % side, y = Math.floor(pixel / side);
        sums[4 * (Math.floor(y / LOOK) * least + Math.floor(x / LOOK)) + at % 4] += value;
      });
      image.data.set(sums.map(sum => sum / LOOK ** 2));
      this.seen.getContext("2d").putImageData(image, 0, 0);
    }

    // Take a square, moved into the photo, and show it: a turned one's corners may leave the photo.
    choose(square) {
      const {width, height, least} = this.data, side = clamp(Math.round(square[2]), least, this.most);
      // A crop's centre is inside the photo.
      const low = this.low.map(low => Math.ceil(Math.max(low, -side / 2)));
      const high = this.high.map((high, axis) => Math.floor(Math.min(high - side, [width, height][axis] - side / 2)));
      const [left, top] = [0, 1].map(axis => clamp(Math.round(square[axis]), low[axis], high[axis]));
      const turn = Math.round(10 * ((square[3] ?? 0) - 360 * Math.round((square[3] ?? 0) / 360))) / 10;
      this.square = [left, top, side, turn];
      this.place(this.frame, this.square);
      this.place(this.shade, this.square);
      this.numbers.forEach((input, at) => { input.value = this.square[at]; });
      [...high, this.most].forEach((value, at) => { this.numbers[at].max = value; });
      const place = `${side}x${side} pixels from column ${left}, row ${top}${turn ? `, turned by ${turn} degrees` : ""}`;
      const found = this.data.crops.findIndex(({square}) => written(square) === written(this.square));
      this.upright.setAttribute("aria-pressed", !turn);
      this.buttons.forEach((button, at) => button.setAttribute("aria-pressed", at === found));
      this.frame.setAttribute("aria-valuenow", side);
      this.frame.setAttribute("aria-valuetext", place);
      this.where.textContent = `${this.names[found]?.name ?? "Your crop"}: ${place}.`;
      this.question.hidden = !this.data.crops[found]?.uncertain;
      this.look();
    }

    place(layer, [left, top, side, turn]) {
      layer.style.left = `${100 * left / this.data.width}%`;
      layer.style.top = `${100 * top / this.data.height}%`;
      layer.style.width = `${100 * side / this.data.width}%`;
      layer.style.transform = turn ? `rotate(${turn}deg)` : "";
    }

    enter(at, value) {
      const square = [...this.square];
      if (Number.isFinite(value)) square[at] = value;
      this.choose(square);
    }

    press(event) {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      if (event.key === "Enter") {
        event.preventDefault();  // the button that gets the focus would be pressed
        return this.accept();
      }
      const {width, height} = this.data, [left, top, side, turn] = this.square;
      const step = share => Math.max(1, Math.round(this.most * share));
      const by = step(event.shiftKey ? 0.05 : 0.01);
      const sized = to => {
        const size = clamp(to, this.data.least, this.most);
        return [left + (side - size) / 2, top + (side - size) / 2, size, turn];
      };
      const at = (x, y, degrees = turn) => [x, y, side, degrees];
      const square = {",": at(left, top, turn - 1), ".": at(left, top, turn + 1), ArrowLeft: at(left - by, top),
        ArrowRight: at(left + by, top), ArrowUp: at(left, top - by), ArrowDown: at(left, top + by), "+": sized(side + step(0.05)), "=": sized(side + step(0.05)),
        "-": sized(side - step(0.05)), Home: sized(Math.min(width, height))}[event.key];
      if (!square) return;
      event.preventDefault();
      this.choose(square);
    }

    // Return a pointer's place in pixels of the photo.
    at(event) {
      const box = this.photo.getBoundingClientRect(), scale = this.data.width / box.width;
      return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    }

    grab(event) {
      if (event.button !== 0 || this.held) return;
      const [x, y] = this.at(event), centre = centreOf(this.square);
      const corner = Object.keys(CORNERS).find(name => event.target.classList.contains(`sr-${name}`));
      const [across, down] = CORNERS[corner] ?? [0, 0];
      // What the pointer holds, a corner or the centre, how far from it the pointer is, and the opposite corner, which stays.
      const [held, fixed] = [1, -1].map(sign => cornerOf(this.square, sign * across, sign * down).map((value, axis) => value + centre[axis]));
      this.held = {pointer: event.pointerId, across, down, off: [x - held[0], y - held[1]], fixed,
        turns: event.target.classList.contains("sr-turn"), from: degreesOf([x - centre[0], y - centre[1]]) - this.square[3]};
      this.frame.setPointerCapture(event.pointerId);
      this.frame.focus({preventScroll: true, focusVisible: false});
      event.preventDefault();
    }

    drag(event) {
      if (event.pointerId !== this.held?.pointer) return;
      const {across, down, off, fixed, turns, from} = this.held, [left, top, now, turn] = this.square;
      if (turns) {
        const degrees = degreesOf(this.at(event).map((value, axis) => value - centreOf(this.square)[axis])) - from;
        return this.choose([left, top, now, event.shiftKey ? SNAP * Math.round(degrees / SNAP) : degrees]);
      }
      const to = this.at(event).map((value, axis) => value - off[axis]);
      if (!across) return this.choose([to[0] - now / 2, to[1] - now / 2, now, turn]);
      const [x, y] = turned([to[0] - fixed[0], to[1] - fixed[1]], -turn);
      // The centre's distance from the corner that stays, over the side; and the sides with which the frame reaches the edges that
      // it grows towards. It slides along the others.
      const centre = cornerOf([0, 0, 1, turn], across, down);
      const room = centre.flatMap((share, axis) => [[fixed[axis] - this.low[axis], 0.5 - share], [this.high[axis] - fixed[axis], 0.5 + share]])
        .filter(([, share]) => share > 0.25).map(([distance, share]) => distance / share);
      const side = clamp(Math.round(Math.max(across * x, down * y)), this.data.least, Math.floor(Math.min(...room) + 1e-6));
      this.choose([...centre.map((share, axis) => fixed[axis] + side * (share - 0.5)), side, turn]);
    }

    release(event) {
      if (event.pointerId !== this.held?.pointer) return;
      this.held = null;
    }
  }

  document.addEventListener("superres-offered", () => {
    offered = true;
    if (current) current.used = false;
    current?.show(true);
  });
  for (const name of ["photo", "example", "input", "refused"]) {  // the box shows what comes, or why nothing does
    document.addEventListener(`superres-${name}`, () => {
      offered = false;
      current?.show(false);
    });
  }

  if (!customElements.get("superres-crop")) customElements.define("superres-crop", Crop);
})();
