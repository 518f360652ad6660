// <superres-race data-view="..."> replays finished decodes of one face side by side: all have made the same number of steps
// at any time, so their lengths have the true ratio. superres/web/race.py writes the data; nothing asks the server.
"use strict";
(() => {
  const {make, Drawn} = superres;
  const CHANNELS = 3, SECONDS = 8;  // tokens of a pixel, length of the replay
  const number = value => value.toLocaleString("en");

  // Return the number of tokens of a stage after some of its steps; a stage without `accepted` makes one per step.
  const tokensOf = (stage, steps) => stage.accepted ? stage.accepted.slice(0, steps).reduce((sum, one) => sum + one, 0) : steps;
  const stepsOf = stage => stage.accepted ? stage.accepted.length : stage.tokens;

  class Race extends Drawn {
    draw(view) {
      cancelAnimationFrame(this.timer);
      this.decodes = view.decodes.map(decode => ({...decode, total: decode.stages.reduce((sum, stage) => sum + stepsOf(stage), 0)}));
      this.most = Math.max(...this.decodes.map(({total}) => total));
      this.input = make("img", {src: view.input});
      this.verdict = make("p", {class: "sr-verdict"});
      const panels = make("div", {class: "sr-panels"});
      const still = (name, uri, alt, below) => panels.append(this.panel(name, make("img", {src: uri, alt}), make("span", {}, below)));
      still(`Input, ${view.size}`, view.input, `The ${view.size} input, enlarged`, "all that the model sees");
      for (const decode of this.decodes) {
        decode.canvas = make("canvas", {width: view.side, height: view.side, role: "img", "aria-label": `${decode.name}: the picture so far`});
        decode.count = make("span", {});
        panels.append(this.panel(decode.name, decode.canvas, decode.count));
      }
      if (view.truth) still("Truth", view.truth, "The photo, reduced", "the photo, for comparison");
      this.button = make("button", {type: "button", class: "sr-again"}, "Play again");
      this.button.addEventListener("click", () => this.play());
      this.append(this.verdict, panels, this.button);
      this.pictures = Promise.all([this.input.decode(), ...this.decodes.flatMap(decode => decode.stages.map(stage => {
        stage.image = make("img", {src: stage.uri});
        return stage.image.decode();
      }))]);
      this.show(0);
      this.input.decode().then(() => this.show(this.shown));
      if (matchMedia("(prefers-reduced-motion: reduce)").matches) this.pictures.then(() => this.show(this.most));
      else this.play();
    }

    disconnectedCallback() {
      super.disconnectedCallback();
      cancelAnimationFrame(this.timer);
    }

    panel(name, picture, below) {
      const frame = make("div", {class: "sr-frame"}, picture);
      return make("figure", {class: "sr-figure sr-pixels"}, make("b", {}, name), frame, make("figcaption", {}, below));
    }

    async play() {
      cancelAnimationFrame(this.timer);
      await this.pictures;
      const start = performance.now();
      const tick = now => {
        const share = Math.min(Math.max(now - start, 0) / (1000 * SECONDS), 1);
        this.show(Math.round(share * this.most));
        if (share < 1) this.timer = requestAnimationFrame(tick);
      };
      this.timer = requestAnimationFrame(tick);
    }

    show(steps) {
      this.shown = steps;
      this.verdict.replaceChildren(...this.verdictOf(steps));
      for (const decode of this.decodes) {
        const made = Math.min(steps, decode.total);
        decode.count.textContent = made === decode.total ? `${number(made)} steps: ${decode.end}` : `${number(made)} of ${number(decode.total)} steps`;
        this.paint(decode, made);
      }
    }

    // Say what is raced, and at the end the steps of both.
    verdictOf(steps) {
      const [slow, fast] = this.decodes;
      if (steps < this.most) return ["The same face, drawn in two ways. ", make("b", {}, "Which one takes fewer steps?")];
      return [make("b", {}, `${number(slow.total)} steps`), " beside ", make("b", {}, number(fast.total)), `: ${fast.end}`];
    }

    // Paint the input, and each stage over the one before, as far as its tokens reach.
    paint({canvas, stages}, steps) {
      const context = canvas.getContext("2d"), {width: side} = canvas;
      context.imageSmoothingEnabled = false;
      context.fillStyle = "#a0a0a0";
      context.fillRect(0, 0, side, side);
      context.globalAlpha = 0.5;
      if (this.input.complete) context.drawImage(this.input, 0, 0, side, side);
      context.globalAlpha = 1;
      for (const stage of stages) {
        const pixels = Math.floor(tokensOf(stage, Math.min(steps, stepsOf(stage))) / CHANNELS);
        const factor = side / stage.side, rows = Math.floor(pixels / stage.side), rest = pixels % stage.side;
        const copy = (top, across, down) => {
          if (across && down && stage.image?.complete) context.drawImage(stage.image, 0, top, across, down,
            0, top * factor, across * factor, down * factor);
        };
        copy(0, stage.side, rows);
        copy(rows, rest, 1);
        steps -= stepsOf(stage);
        if (steps <= 0) return;
      }
    }
  }

  if (!customElements.get("superres-race")) customElements.define("superres-race", Race);
})();
