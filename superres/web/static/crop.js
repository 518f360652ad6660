// <superres-crop data-photo="..."> moves the square crop of a photo; superres/web/crops.py writes its data.
// Squares are in pixels of the photo. A hidden component has the square that a decode uses, and #preview the server's
// view of the model's input.
"use strict";
(() => {
  const {make} = superres;
  const REST = 100;  // milliseconds after which a pointer rests
  const CORNERS = {"nw": [-1, -1], "ne": [1, -1], "sw": [-1, 1], "se": [1, 1]};
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

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
      const {width, height, least, crops} = this.data;
      this.most = Math.min(width, height);
      this.photo = this.querySelector("img");
      this.photo.draggable = false;
      this.shade = make("div", {class: "sr-shade"});
      this.frame = make("div", {class: "sr-crop", role: "slider", tabindex: 0, "aria-label": "Crop of the photo",
        "aria-valuemin": least, "aria-valuemax": this.most, "aria-describedby": "sr-crop-keys"});
      for (const corner of Object.keys(CORNERS)) this.frame.append(make("div", {class: `sr-handle sr-${corner}`}));
      const found = crops.length === 1 ? [] : crops.map(({square}, at) => {
        const outline = make("div", {class: "sr-found", "aria-hidden": "true"}, make("span", {}, String(at + 1)));
        this.place(outline, square);
        return outline;
      });
      const stage = make("div", {class: "sr-photo"}, make("div", {class: "sr-picture"}, this.photo, this.shade, ...found),
        this.frame);
      stage.style.setProperty("--ratio", width / height);
      this.where = make("p", {class: "sr-where"});
      this.question = make("p", {class: "sr-question"}, "Is this a face? If it is not, the model still draws one: move the frame, or choose another photo.");
      this.buttons = crops.map(({button, square}) => {
        const element = make("button", {type: "button"}, button);
        element.addEventListener("click", () => this.choose(square, true));
        return element;
      });
      this.numbers = ["Left", "Top", "Side"].map((_, at) => {
        const input = make("input", {type: "number", step: 1, min: at === 2 ? least : 0});
        input.addEventListener("change", () => this.enter(at, input.valueAsNumber));
        return input;
      });
      this.replaceChildren(stage, make("div", {class: "sr-buttons"}, ...this.buttons), this.where, this.question,
        make("details", {}, make("summary", {}, "Crop in numbers"),
          make("div", {class: "sr-numbers"}, ...this.numbers.map((input, at) =>
            make("label", {}, make("span", {}, `${["Left", "Top", "Side"][at]}, pixels`), input))),
          make("p", {class: "sr-hint", id: "sr-crop-keys"}, "Keys on the crop: arrows move it by 1 %, with Shift by 5 %; " +
            "+ and \u2212 resize it; Home makes it as large as the photo allows.")));
      this.setAttribute("role", "group");
      this.setAttribute("aria-label", "Crop");
      this.frame.addEventListener("keydown", event => this.press(event));
      this.frame.addEventListener("pointerdown", event => this.grab(event));
      this.frame.addEventListener("pointermove", event => this.drag(event));
      for (const end of ["pointerup", "pointercancel"]) this.frame.addEventListener(end, event => this.release(event));
    }

    // Take a square, moved into the photo, and show it. Ask the server at once, when the pointer rests, or not at all.
    choose([left, top, side], ask = false) {
      const {width, height, least} = this.data;
      side = clamp(Math.round(side), least, this.most);
      left = clamp(Math.round(left), 0, width - side);
      top = clamp(Math.round(top), 0, height - side);
      this.square = [left, top, side];
      this.place(this.frame, this.square);
      this.place(this.shade, this.square);
      [[left, width - side], [top, height - side], [side, this.most]].forEach(([value, high], at) => {
        this.numbers[at].value = value;
        this.numbers[at].max = high;
      });
      const place = `${side}x${side} pixels from column ${left}, row ${top}`;
      const found = this.data.crops.findIndex(({square}) => square.join() === this.square.join());
      this.buttons.forEach((button, at) => button.setAttribute("aria-pressed", at === found));
      this.frame.setAttribute("aria-valuenow", side);
      this.frame.setAttribute("aria-valuetext", place);
      this.where.textContent = `${this.data.crops[found]?.name ?? "Your crop"}: ${place}.`;
      this.question.hidden = !this.data.crops[found]?.uncertain;
      clearTimeout(this.timer);
      if (ask === "rest") this.timer = setTimeout(() => this.ask(), REST);
      else if (ask) this.ask();
    }

    place(layer, [left, top, side]) {
      layer.style.left = `${100 * left / this.data.width}%`;
      layer.style.top = `${100 * top / this.data.height}%`;
      layer.style.width = `${100 * side / this.data.width}%`;
    }

    ask() {
      this.dispatchEvent(new CustomEvent("superres-square", {bubbles: true, detail: this.square.join()}));
    }

    enter(at, value) {
      const square = [...this.square];
      if (Number.isFinite(value)) square[at] = value;
      this.choose(square, true);
    }

    press(event) {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const [left, top, side] = this.square, step = share => Math.max(1, Math.round(this.most * share));
      const by = step(event.shiftKey ? 0.05 : 0.01);
      const sized = to => {
        const size = clamp(to, this.data.least, this.most);
        return [left + (side - size) / 2, top + (side - size) / 2, size];
      };
      const square = {ArrowLeft: [left - by, top, side], ArrowRight: [left + by, top, side], ArrowUp: [left, top - by, side],
        ArrowDown: [left, top + by, side], "+": sized(side + step(0.05)), "=": sized(side + step(0.05)),
        "-": sized(side - step(0.05)), Home: sized(this.most)}[event.key];
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
      const [x, y] = this.at(event), [left, top, side] = this.square;
      const corner = Object.keys(CORNERS).find(name => event.target.classList.contains(`sr-${name}`));
      const [across, down] = CORNERS[corner] ?? [0, 0];
      // What the pointer holds, a corner or the top left, and how far from it the pointer is.
      const held = [left + (across > 0 ? side : 0), top + (down > 0 ? side : 0)];
      this.held = {pointer: event.pointerId, across, down, off: [x - held[0], y - held[1]],
        fixed: [left + (across < 0 ? side : 0), top + (down < 0 ? side : 0)]};
      this.frame.setPointerCapture(event.pointerId);
      this.frame.focus({preventScroll: true, focusVisible: false});
      event.preventDefault();
    }

    drag(event) {
      if (event.pointerId !== this.held?.pointer) return;
      const {across, down, off, fixed} = this.held, [x, y] = this.at(event).map((value, axis) => value - off[axis]);
      if (!across) return this.choose([x, y, this.square[2]], "rest");
      const room = Math.min(across > 0 ? this.data.width - fixed[0] : fixed[0], down > 0 ? this.data.height - fixed[1] : fixed[1]);
      const side = clamp(Math.round(Math.max(across * (x - fixed[0]), down * (y - fixed[1]))), this.data.least, room);
      this.choose([fixed[0] - (across < 0 ? side : 0), fixed[1] - (down < 0 ? side : 0), side], "rest");
    }

    release(event) {
      if (event.pointerId !== this.held?.pointer) return;
      this.held = null;
      this.choose(this.square, true);
    }
  }

  if (!customElements.get("superres-crop")) customElements.define("superres-crop", Crop);
})();
