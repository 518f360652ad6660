// <superres-crop data-photo="..."> moves the square crop of a photo; superres/web/crops.py writes its data.
// Squares are left, top and side in pixels of the photo, and degrees clockwise about their centre. A hidden component has the
// square that a decode uses, and #preview the server's view of the model's input.
"use strict";
(() => {
  const {make} = superres;
  const REST = 100;  // milliseconds after which a pointer rests
  const CORNERS = {"nw": [-1, -1], "ne": [1, -1], "sw": [-1, 1], "se": [1, 1]};
  const FIELDS = ["Left, pixels", "Top, pixels", "Side, pixels", "Turn, degrees"];
  const SNAP = 5;  // degrees
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const turned = ([x, y], degrees) => {
    const cos = Math.cos(degrees * Math.PI / 180), sin = Math.sin(degrees * Math.PI / 180);
    return [cos * x - sin * y, sin * x + cos * y];
  };
  // Return the place, relative to a square's centre, of its corner, or of its centre where `across` and `down` are 0.
  const cornerOf = ([, , side, turn], across, down) => turned([across * side / 2, down * side / 2], turn);
  const centreOf = ([left, top, side]) => [left + side / 2, top + side / 2];
  const degreesOf = ([x, y]) => Math.atan2(x, -y) * 180 / Math.PI;  // of a direction, clockwise from upwards
  const written = square => (square[3] ? square : square.slice(0, 3)).join();  // as a crop setting

  class Crop extends HTMLElement {
    static observedAttributes = ["data-photo"];

    // Gradio turns the HTML of one photo into that of the next and removes the children of this element: add them after that.
    attributeChangedCallback() {
      queueMicrotask(() => this.begin());
    }

    begin() {
      this.data = JSON.parse(this.dataset.photo);
      this.held = null;
      this.build();
      this.choose(this.data.crops[this.data.chosen].square);
    }

    disconnectedCallback() {
      clearTimeout(this.timer);
    }

    build() {
      const {width, height, least, crops, turns} = this.data;
      // Found squares may reach beyond the photo, and the visitor's as far as those.
      this.low = [0, 1].map(axis => Math.min(0, ...crops.map(({square}) => square[axis])));
      this.high = [0, 1].map(axis => Math.max([width, height][axis], ...crops.map(({square}) => square[axis] + square[2])));
      this.most = Math.min(...this.high.map((high, axis) => high - this.low[axis]));
      this.photo = this.querySelector("img");
      this.photo.draggable = false;
      this.shade = make("div", {class: "sr-shade"});
      this.frame = make("div", {class: "sr-crop", role: "slider", tabindex: 0, "aria-label": "Crop of the photo",
        "aria-valuemin": least, "aria-valuemax": this.most, "aria-describedby": "sr-crop-keys"});
      for (const corner of Object.keys(CORNERS)) this.frame.append(make("div", {class: `sr-handle sr-${corner}`}));
      if (turns) this.frame.append(make("div", {class: "sr-turn", title: "Turn"}));
      const found = crops.length === 1 ? [] : crops.map(({square}, at) => {
        const outline = make("div", {class: "sr-found", "aria-hidden": "true"}, make("span", {}, String(at + 1)));
        this.place(outline, square);
        return outline;
      });
      const stage = make("div", {class: "sr-photo"}, make("div", {class: "sr-picture"}, this.photo, this.shade, ...found),
        this.frame);
      stage.classList.toggle("sr-turns", Boolean(turns));
      const shares = {left: -this.low[0], across: this.high[0] - this.low[0], above: -this.low[1], below: this.high[1] - height};
      for (const [name, value] of Object.entries(shares)) stage.style.setProperty(`--${name}`, value / width);
      stage.style.setProperty("--ratio", width / height);
      this.where = make("p", {class: "sr-where"});
      this.question = make("p", {class: "sr-question"}, `Is this a face? If it is not, the model still draws one: move ${turns ? "and turn " : ""}the frame, or choose another photo.`);
      this.buttons = crops.map(({button, square}) => {
        const element = make("button", {type: "button"}, button);
        element.addEventListener("click", () => this.choose(square, true));
        return element;
      });
      this.upright = make("button", {type: "button"}, "Upright");
      this.upright.addEventListener("click", () => this.enter(3, 0));
      this.numbers = FIELDS.slice(0, turns ? 4 : 3).map((_, at) => {
        const input = make("input", {type: "number", step: at === 3 ? 0.1 : 1, min: [...this.low, least, -180][at], max: 180});
        input.addEventListener("change", () => this.enter(at, input.valueAsNumber));
        return input;
      });
      this.replaceChildren(stage, make("div", {class: "sr-buttons"}, ...this.buttons, ...turns ? [this.upright] : []), this.where, this.question,
        make("details", {}, make("summary", {}, "Crop in numbers"),
          make("div", {class: "sr-numbers"}, ...this.numbers.map((input, at) =>
            make("label", {}, make("span", {}, FIELDS[at]), input))),
          make("p", {class: "sr-hint", id: "sr-crop-keys"}, "Keys on the crop: arrows move it by 1 %, with Shift by 5 %; " +
            "+ and \u2212 resize it; Home makes it as large as the photo allows" + (turns ? "; comma and full stop turn it by 1 degree. The round handle turns it, " +
            `with Shift to a multiple of ${SNAP} degrees; a double click makes it upright.` : "."))));
      this.setAttribute("role", "group");
      this.setAttribute("aria-label", "Crop");
      this.frame.addEventListener("keydown", event => this.press(event));
      this.frame.addEventListener("pointerdown", event => this.grab(event));
      this.frame.addEventListener("pointermove", event => this.drag(event));
      for (const end of ["pointerup", "pointercancel"]) this.frame.addEventListener(end, event => this.release(event));
      if (turns) this.frame.addEventListener("dblclick", () => this.enter(3, 0));
    }

    // Take a square, moved into the photo, and show it: a turned one's corners may leave the photo. Ask the server at once, when the pointer rests, or not at all.
    choose(square, ask = false) {
      const {width, height, least} = this.data, side = clamp(Math.round(square[2]), least, this.most);
      // The server wants a centre inside the photo.
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
      this.where.textContent = `${this.data.crops[found]?.name ?? "Your crop"}: ${place}.`;
      this.question.hidden = !this.data.crops[found]?.uncertain;
      clearTimeout(this.timer);
      if (ask === "rest") this.timer = setTimeout(() => this.ask(), REST);
      else if (ask) this.ask();
    }

    place(layer, [left, top, side, turn]) {
      layer.style.left = `${100 * left / this.data.width}%`;
      layer.style.top = `${100 * top / this.data.height}%`;
      layer.style.width = `${100 * side / this.data.width}%`;
      layer.style.transform = turn ? `rotate(${turn}deg)` : "";
    }

    ask() {
      this.dispatchEvent(new CustomEvent("superres-square", {bubbles: true, detail: written(this.square)}));
    }

    enter(at, value) {
      const square = [...this.square];
      if (Number.isFinite(value)) square[at] = value;
      this.choose(square, true);
    }

    press(event) {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const {width, height, turns} = this.data, [left, top, side, turn] = this.square;
      const step = share => Math.max(1, Math.round(this.most * share));
      const by = step(event.shiftKey ? 0.05 : 0.01);
      const sized = to => {
        const size = clamp(to, this.data.least, this.most);
        return [left + (side - size) / 2, top + (side - size) / 2, size, turn];
      };
      const at = (x, y, degrees = turn) => [x, y, side, degrees], turning = turns ? {",": at(left, top, turn - 1), ".": at(left, top, turn + 1)} : {};
      const square = {...turning, ArrowLeft: at(left - by, top), ArrowRight: at(left + by, top), ArrowUp: at(left, top - by),
        ArrowDown: at(left, top + by), "+": sized(side + step(0.05)), "=": sized(side + step(0.05)),
        "-": sized(side - step(0.05)), Home: sized(Math.min(width, height))}[event.key];
      if (!square) return;
      event.preventDefault();
      this.choose(square, true);
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
        return this.choose([left, top, now, event.shiftKey ? SNAP * Math.round(degrees / SNAP) : degrees], "rest");
      }
      const to = this.at(event).map((value, axis) => value - off[axis]);
      if (!across) return this.choose([to[0] - now / 2, to[1] - now / 2, now, turn], "rest");
      const [x, y] = turned([to[0] - fixed[0], to[1] - fixed[1]], -turn);
      // The centre's distance from the corner that stays, over the side; and the sides with which the frame reaches the edges that
      // it grows towards. It slides along the others.
      const centre = cornerOf([0, 0, 1, turn], across, down);
      const room = centre.flatMap((share, axis) => [[fixed[axis] - this.low[axis], 0.5 - share], [this.high[axis] - fixed[axis], 0.5 + share]])
        .filter(([, share]) => share > 0.25).map(([distance, share]) => distance / share);
      const side = clamp(Math.round(Math.max(across * x, down * y)), this.data.least, Math.floor(Math.min(...room) + 1e-6));
      this.choose([...centre.map((share, axis) => fixed[axis] + side * (share - 0.5)), side, turn], "rest");
    }

    release(event) {
      if (event.pointerId !== this.held?.pointer) return;
      this.held = null;
      this.choose(this.square, true);
    }
  }

  if (!customElements.get("superres-crop")) customElements.define("superres-crop", Crop);
})();
