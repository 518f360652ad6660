// <superres-stepper data-view="..."> steps through finished decodes; superres/web/drawing.py writes its data.
// A step is one decoding iteration. All drawing happens here: no step asks the server.
"use strict";
(() => {
  const {make, Drawn} = superres;
  const CHANNELS = 3, CELL = 32;  // tokens of a pixel, canvas pixels of a face's pixel
  const CLOSE_UP = [11, 3];  // columns and rows of the enlarged surroundings of a block
  const COLOURS = ["red", "green", "blue"];
  const UNIT = {face: "pixel value", text: "token"};  // what the page calls a token
  const SLOWEST = 0.5, FASTEST = 200;  // steps per second
  const FIRST_SPEED = {face: 20, text: 1};
  const MARKS = {accepted: "\u2713", rejected: "\u2013", broken: "\u2715", past: ""};
  const number = value => value.toLocaleString("en");

  // Return the steps of a decode. Its last step is complete: proposals past the end of the sequence are not rejected.
  function stepsOf(decode) {
    const steps = [];
    let position = 0;
    decode.parts.forEach((part, index) => {
      part.accepted.forEach((accepted, at) => {
        const proposed = part.proposed[at], ends = at === part.accepted.length - 1;
        steps.push({
          position, accepted, proposed, ends, broken: !ends && accepted < proposed.length,
          correct: ends ? null : part.proposed[at + 1][0],  // the token that the model gives where the block broke
          text: (at === 0 && index > 0 ? " " : "") + (part.texts?.[at] ?? ""), rejected: part.rejected?.[at] ?? "",
        });
        position += accepted;
      });
    });
    return steps;
  }

  const stateOf = (step, index) => index < step.accepted ? "accepted"
    : step.ends ? "past" : index === step.accepted ? "broken" : "rejected";

  // A view of a face: the pixels decoded so far, and those of the current block.
  class Face {
    // `side` is the side of the face in pixels.
    constructor(side) {
      this.side = side;
      this.around = CLOSE_UP.map(most => Math.min(most, side));
      this.canvas = make("canvas", {width: side * CELL, height: side * CELL, role: "img"});
      this.close = make("canvas", {width: this.around[0] * CELL, height: this.around[1] * CELL, "aria-hidden": "true"});
      this.element = make("div", {class: "sr-stage"}, this.canvas, this.close);
      this.small = make("canvas", {width: side, height: side});
    }

    // Take the picture that pixels without all their colours show, if there is one, and call `drawn` when it is there.
    begin({below}, drawn) {
      this.below = below ? make("img", {src: below}) : null;
      this.below?.decode().then(drawn);
    }

    name(step, index) {
      return `${COLOURS[(step.position + index) % CHANNELS][0].toUpperCase()} ${step.proposed[index]}`;
    }

    token(proposed) {
      return String(proposed);
    }

    where(token) {
      const pixel = Math.floor(token / CHANNELS);
      return ` (${COLOURS[token % CHANNELS]} of the pixel in row ${Math.floor(pixel / this.side) + 1}, ` +
        `column ${pixel % this.side + 1})`;
    }

    show(steps, shown, label) {
      const step = steps[shown - 1];
      const known = steps.slice(0, shown).flatMap(({proposed, accepted}) => proposed.slice(0, accepted));
      const context = this.canvas.getContext("2d"), small = this.small.getContext("2d");
      const {side} = this, pixels = small.createImageData(side, side);
      for (let pixel = 0; pixel < side * side; pixel++) {
        const empty = (pixel % side + Math.floor(pixel / side)) % 2 ? 170 : 150;
        const whole = (pixel + 1) * CHANNELS <= known.length;
        for (let channel = 0; channel < CHANNELS; channel++) {
          pixels.data[4 * pixel + channel] = whole ? known[CHANNELS * pixel + channel] : empty;
        }
        pixels.data[4 * pixel + 3] = whole || !this.below ? 255 : 0;
      }
      small.putImageData(pixels, 0, 0);
      context.imageSmoothingEnabled = false;
      if (this.below) context.drawImage(this.below, 0, 0, side * CELL, side * CELL);
      context.drawImage(this.small, 0, 0, side * CELL, side * CELL);
      this.canvas.setAttribute("aria-label", label);
      if (step) this.mark(context, step, known);
      this.enlarge(Math.floor((step?.position ?? 0) / CHANNELS));
    }

    // Draw the surroundings of a pixel at a larger scale.
    enlarge(pixel) {
      const {side, around: [width, height]} = this, {width: across, height: down} = this.close;
      const left = Math.min(Math.max(pixel % side - 1, 0), side - width);
      const top = Math.min(Math.max(Math.floor(pixel / side) - 1, 0), side - height);
      const context = this.close.getContext("2d");
      context.drawImage(this.canvas, left * CELL, top * CELL, across, down, 0, 0, across, down);
    }

    mark(context, step, known) {
      const all = [...known, ...step.proposed.slice(step.accepted)], states = new Map();
      step.proposed.forEach((_, index) => {
        const pixel = Math.floor((step.position + index) / CHANNELS);
        states.set(pixel, [...states.get(pixel) ?? [], stateOf(step, index)]);
      });
      const outline = (left, top, side, colour, dashes) => {
        for (const [style, width] of [["#fff", 7], [colour, 4]]) {
          context.strokeStyle = style;
          context.lineWidth = width;
          context.setLineDash(width === 4 ? dashes : []);
          context.strokeRect(left, top, side, side);
        }
      };
      for (const [pixel, found] of states) {
        const left = pixel % this.side * CELL, top = Math.floor(pixel / this.side) * CELL;
        if (found.every(state => state === "past")) continue;
        if (found.includes("broken") || found.includes("rejected")) {
          const proposal = all.slice(CHANNELS * pixel, CHANNELS * (pixel + 1));
          if (proposal.length === CHANNELS) {  // the colour that was proposed
            context.fillStyle = `rgb(${proposal.join(" ")})`;
            context.fillRect(left + 8, top + 8, CELL - 16, CELL - 16);
          }
        }
        if (found.includes("accepted")) outline(left + 2, top + 2, CELL - 4, "#1d6fd6", []);
        else outline(left + 6, top + 6, CELL - 12, "#c2410c", [5, 4]);
        if (found.includes("broken")) {
          for (const [style, width] of [["#fff", 10], ["#c2410c", 6]]) {
            context.strokeStyle = style;
            context.lineWidth = width;
            context.setLineDash([]);
            context.beginPath();
            context.moveTo(left + 7, top + 7);
            context.lineTo(left + CELL - 7, top + CELL - 7);
            context.moveTo(left + CELL - 7, top + 7);
            context.lineTo(left + 7, top + CELL - 7);
            context.stroke();
          }
        }
      }
    }
  }

  // A view of a translation: the text decoded so far, and that of the current block.
  class Text {
    constructor(language) {
      this.element = make("p", {class: "sr-stage sr-sentence", lang: language});
    }

    begin() {}

    name(step, index) {
      return step.proposed[index];
    }

    where() {
      return "";
    }

    token(proposed) {
      return `\u201c${proposed}\u201d`;
    }

    show(steps, shown) {
      const step = steps[shown - 1];
      this.element.replaceChildren(steps.slice(0, Math.max(shown - 1, 0)).map(({text}) => text).join(""));
      if (!step) return;
      this.element.append(make("span", {class: "sr-accepted"}, step.text));
      if (step.broken) this.element.append(make("del", {class: "sr-rejected"}, 
        step.rejected || step.proposed.slice(step.accepted).join(" ")));
    }
  }

  class Stepper extends Drawn {
    constructor() {
      super();
      this.addEventListener("keydown", event => this.press(event));
    }

    draw(data) {
      cancelAnimationFrame(this.timer);
      this.data = data;
      this.unit = UNIT[data.kind];
      this.view = data.kind === "face" ? new Face(data.side) : new Text(data.language);
      this.build();
      this.choose(0);
    }

    disconnectedCallback() {
      super.disconnectedCallback();
      this.pause();
    }

    build() {
      const button = (text, act) => {
        const element = make("button", {type: "button"}, text);
        element.addEventListener("click", act);
        return element;
      };
      const labelled = (text, control, ...more) => make("label", {}, make("span", {}, text), control, ...more);
      this.scrubber = make("input", {type: "range", min: 0, value: 0, class: "sr-scrubber"});
      this.scrubber.addEventListener("input", () => { this.pause(); this.show(this.scrubber.valueAsNumber); });
      this.speed = make("input", {type: "range", min: 0, max: 100, step: 0.5, value: this.slider(FIRST_SPEED[this.data.kind])});
      this.speed.addEventListener("input", () => this.setSpeed());
      this.speedText = make("p", {class: "sr-speed"});
      this.play = button("Play", () => this.timer ? this.pause() : this.start());
      this.select = make("select", {}, ...this.data.decodes.map((decode, at) => make("option", {value: at}, decode.name)));
      this.select.addEventListener("change", () => this.choose(Number(this.select.value)));
      const choice = labelled("Decode", this.select);
      choice.hidden = this.data.decodes.length === 1;
      this.caption = make("p", {class: "sr-caption", role: "status"});
      this.strip = make("ol", {class: "sr-strip", "aria-label": `Proposed ${this.unit}s of this step`});
      const key = ["accepted", "broken", "rejected"].map((state, at) => make("span", {class: `sr-key sr-${state}`},
        `${MARKS[state]} ${["accepted", "the block broke here", "rejected"][at]}`));
      this.append(
        choice, this.view.element, labelled("Step", this.scrubber),
        make("div", {class: "sr-buttons"}, button("Back", () => this.move(-1)), this.play,
          button("Forward", () => this.move(1))),
        labelled("Speed", this.speed), this.speedText, this.caption, this.strip,
        make("p", {class: "sr-keys"}, ...key),
        make("p", {class: "sr-hint"}, "Keys: left and right arrow step, Space plays and pauses, Home and End jump."));
    }

    press(event) {
      const tag = event.target.tagName;
      const act = {" ": () => this.timer ? this.pause() : this.start(), ArrowLeft: () => this.move(-1),
        ArrowRight: () => this.move(1), Home: () => this.move(-Infinity), End: () => this.move(Infinity)}[event.key];
      if (!act || event.ctrlKey || event.altKey || event.metaKey || tag === "SELECT") return;
      if (event.key === " " ? tag === "BUTTON" : event.target === this.speed) return;  // the control's own key
      event.preventDefault();
      act();
    }

    choose(index) {
      this.pause();
      this.steps = stepsOf(this.data.decodes[index]);
      this.widest = Math.max(...this.steps.map(step => step.proposed.length));
      this.scrubber.max = this.steps.length;
      this.seconds = this.data.decodes[index].seconds;
      this.setSpeed();
      this.view.begin(this.data.decodes[index], () => this.show(this.shown));
      this.show(Math.min(1, this.steps.length));
    }

    move(by) {
      this.pause();
      this.show(Math.min(Math.max(this.shown + by, 0), this.steps.length));
    }

    start() {
      if (this.shown === this.steps.length) this.show(0);
      this.play.textContent = "Pause";
      this.caption.setAttribute("aria-live", "off");  // a screen reader cannot follow the playing
      this.due = this.shown;
      let before = performance.now();
      const tick = now => {
        this.due = Math.min(this.due + this.rate * Math.max(now - before, 0) / 1000, this.steps.length);
        before = now;
        if (Math.floor(this.due) !== this.shown) this.show(Math.floor(this.due));
        if (this.shown === this.steps.length) this.pause();
        else this.timer = requestAnimationFrame(tick);
      };
      this.timer = requestAnimationFrame(tick);
    }

    pause() {
      cancelAnimationFrame(this.timer);
      this.timer = null;
      this.play.textContent = "Play";
      this.caption.removeAttribute("aria-live");
    }

    slider(rate) {
      return 100 * Math.log(rate / SLOWEST) / Math.log(FASTEST / SLOWEST);
    }

    setSpeed() {
      this.rate = SLOWEST * (FASTEST / SLOWEST) ** (this.speed.valueAsNumber / 100);
      const rounded = this.rate < 10 ? Math.round(10 * this.rate) / 10 : Math.round(this.rate);
      const slower = this.steps.length / this.rate / Math.max(this.seconds, 1e-6);
      const factor = value => number(Number(value.toPrecision(2)));
      this.speedText.textContent = `${rounded} step${rounded === 1 ? "" : "s"} per second, ` +
        (slower >= 1 ? `${factor(slower)} times slower` : `${factor(1 / slower)} times faster`) + " than the decode";
      this.speed.setAttribute("aria-valuetext", this.speedText.textContent);
    }

    show(shown) {
      this.shown = shown;
      this.scrubber.value = shown;
      const label = `Step ${number(shown)} of ${number(this.steps.length)}`, step = this.steps[shown - 1];
      this.scrubber.setAttribute("aria-valuetext", label);
      this.view.show(this.steps, shown, `The picture after step ${number(shown)}`);
      this.caption.textContent = `${label}. ${step ? this.describe(step) : `No ${this.unit} is decoded yet.`}`;
      this.strip.replaceChildren(...Array.from({length: this.widest}, (_, index) => this.cell(step, index)));
    }

    cell(step, index) {
      if (!step || index >= step.proposed.length) return make("li", {class: "sr-none"});
      const state = stateOf(step, index), cell = make("li", {class: `sr-${state}`, "data-state": state});
      cell.append(make("b", {}, this.view.name(step, index)),
        make("span", {}, `${MARKS[state]} ${state === "past" ? "past the end" : state}`));
      return cell;
    }

    describe(step) {
      const {accepted, proposed, position} = step;
      const share = `${proposed.length} ${this.unit}${proposed.length === 1 ? "" : "s"} proposed from ` +
        `${this.unit} ${number(position + 1)}: ${accepted} accepted`;
      if (step.broken) {
        const at = position + accepted;
        return `${share}, ${proposed.length - accepted} rejected. The block broke at ${this.unit} ${number(at + 1)}` +
          `${this.view.where(at)}: proposed ${this.view.token(proposed[accepted])}, the model gives ` +
          `${this.view.token(step.correct)}.`;
      }
      const past = proposed.length - accepted;
      return `${share}. ${past ? `${past} lie past the end.` : "The whole block was accepted."}`;
    }
  }

  if (!customElements.get("superres-stepper")) customElements.define("superres-stepper", Stepper);
})();
