// <superres-draft data-view="..."> is a game: the visitor guesses the next pixels of a face, or the next words of a translation, and
// the model verifies the guesses in one call. Another lane shows the prediction heads: each call of the visitor's lets them do one.
// Faces are asked for by events "superres-ask-draft", one question at a time; "superres-answer" has the answers, of a server with
// superres/web/draft.py, or of the engine in this browser (../site/site.js). Translations are recorded: with exact acceptance,
// they are the greedy ones whoever drafts. A link holds a score: #draft=FACE&k=10&e=12&t=TOKENS&c=CALLS.
"use strict";
(() => {
  const {make, Drawn, sentence} = superres;
  const CHANNELS = 3, CELL = 10, BEFORE = 3;  // tokens of a pixel, canvas pixels of a face's pixel, pixels shown before the guesses
  const COLOURS = ["red", "green", "blue"], SHADE = 16;  // grey levels of "a bit lighter"
  const CHUNK = 300, AHEAD = 24, TICK = 160, CALM = 400;  // calls of a question, of a play; milliseconds of a call that is played
  const TIMED = 120, ROUNDS = 3;  // calls that are timed
  const CHIPS = 8, NEXT = 4;  // words to choose from, of which the next ones are right
  const NAMES = {left: "Let the left pixel draft", heads: "Let the heads draft"};
  const number = value => value.toLocaleString("en"), mean = (tokens, calls) => (calls ? tokens / calls : 0).toFixed(1);
  const plural = (count, unit) => `${number(count)} ${unit}${count === 1 ? "" : "s"}`;
  const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
  const clip = value => Math.min(Math.max(Math.round(value), 0), 255);
  const sum = values => values.reduce((total, value) => total + value, 0);
  const say = (name, detail) => document.dispatchEvent(new CustomEvent(`superres-${name}`, {detail}));
  const textOf = values => btoa(String.fromCharCode(...values)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  const valuesOf = text => Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), letter => letter.charCodeAt(0));
  const button = (text, action, attributes = {}) => {
    const made = make("button", {type: "button", ...attributes}, text);
    made.addEventListener("click", action);
    return made;
  };

  // The score in the address, which the paint box may replace before the game is there.
  let linked = location.hash, opened = false;
  const isLink = hash => /^#draft\b/.test(hash);
  const open = () => { if (isLink(linked) && !opened) say("open-draft"); };
  document.addEventListener("superres-asking", open);  // what opens tabs may come later
  window.addEventListener("hashchange", () => {
    if (!isLink(location.hash)) return;
    linked = location.hash;
    say("open-draft");
  });

  // A face that is drawn row by row.
  class Face {
    constructor(view, ask) {
      Object.assign(this, {view, ask, unit: "value", side: view.side, heads: view.heads, length: CHANNELS * view.side ** 2});
      this.mine = this.canvas("Your face so far");
      this.theirs = this.canvas("The prediction heads' face so far");
      this.strip = make("div", {class: "sr-strip-of-pixels", "aria-hidden": "true"});
      this.custom = make("input", {type: "color", "aria-label": "Any colour", value: "#c68f68"});
      this.custom.addEventListener("change", () => this.choose(6));
      this.swatches = ["Like the left one", "Like the one above", "Between both", "Left + above \u2212 corner", "A bit lighter", "A bit darker"].map((name, at) =>
        button("", () => this.choose(at), {class: "sr-swatch", disabled: "", "aria-keyshortcuts": String(at + 1)}));
      this.names = ["like the left", "like above", "between both", "go on as before", "a bit lighter", "a bit darker"];
      this.told = make("p", {class: "sr-hint"});
      this.controls = make("div", {class: "sr-guess"}, this.told, this.strip,
        make("div", {class: "sr-swatches", role: "group", "aria-label": "Colour of the next pixel"}, ...this.swatches,
          make("label", {class: "sr-swatch"}, this.custom, make("span", {}, "any colour"))),
        make("div", {class: "sr-sends"}, button("Check the guesses", () => this.guarded(() => this.send()), {class: "sr-send", "aria-keyshortcuts": "Enter"}),
          button("Repeat for the rest", () => this.repeat(), {"aria-keyshortcuts": "R"}), button("Take back", () => this.back(), {"aria-keyshortcuts": "Backspace"})));
      this.custom.addEventListener("click", () => { this.custom.focus(); });
      this.hint = "Keys: 1 to 6 guess a pixel, R repeats for the rest, Enter checks, Backspace takes back.";
    }

    canvas(name) {
      const size = this.side * CELL;
      return make("canvas", {width: size, height: size, role: "img", "aria-label": name});
    }

    // Begin a face, of which nothing is drawn.
    async begin(choice) {
      this.cells = valuesOf(choice.x);
      this.choice = choice;
      this.known = [];
      this.lane = null;
      this.pending = [];
      this.guess = [];
      this.show();
      this.pending = (await this.question({calls: 0})).pending;
      this.show();
    }

    question(changes) {
      const {k, e} = this.settings;
      return this.ask({x: this.choice.x, c: "", by: "heads", k, e, calls: this.length, ...changes}).then(answer =>
        ({...answer, tokens: typeof answer.tokens === "string" ? valuesOf(answer.tokens) : answer.tokens}));
    }

    // Draw the heads' lane to its end.
    async run() {
      const lane = await this.question({});
      return () => { this.lane = lane; };
    }

    get done() {
      return this.known.length >= this.length;
    }

    // The pixels that guesses fill: the first and the last one. The model's own next value is known.
    range() {
      const first = this.known.length + 1, last = Math.min(this.known.length + this.settings.k, this.length) - 1;
      return [Math.floor(first / CHANNELS), last < first ? -1 : Math.floor(last / CHANNELS)];
    }

    // The colour of a pixel as far as it is known, decoded, or guessed; of the input in a row above the first.
    pixel(at, guessed = this.guess) {
      if (at < 0) return this.input(at + this.side);
      const tokens = [...this.known, this.pending[0] ?? 128], [first] = this.range(), values = guessed[at - first];
      return [0, 1, 2].map(channel => tokens[CHANNELS * at + channel] ?? values?.[channel]);
    }

    input(at) {
      const factor = this.side / this.view.source, row = Math.floor(Math.floor(at / this.side) / factor), column = Math.floor(at % this.side / factor);
      const cell = CHANNELS * (row * this.view.source + column);
      return this.cells.slice(cell, cell + CHANNELS);
    }

    // The colours that a guess can have at a pixel.
    choices(at, guessed = this.guess) {
      const above = this.pixel(at - this.side, guessed), left = at % this.side ? this.pixel(at - 1, guessed) : above;
      const corner = at % this.side ? this.pixel(at - this.side - 1, guessed) : above;
      const each = make => [0, 1, 2].map(channel => clip(make(left[channel], above[channel], corner[channel])));
      const custom = [1, 3, 5].map(from => parseInt(this.custom.value.slice(from, from + 2), 16));
      return [each(one => one), each((_, up) => up), each((one, up) => (one + up) / 2), each((one, up, before) => one + up - before), each(one => one + SHADE), each(one => one - SHADE), custom];
    }

    choose(kind) {
      const [first, last] = this.range(), at = first + this.guess.length;
      if (at > last) return this.tell("All pixels of this call are guessed: check them.");
      this.kind = kind;
      this.guess.push(this.choices(at)[kind]);
      this.show();
    }

    repeat() {
      const [first, last] = this.range();
      while (first + this.guess.length <= last) this.choose(this.kind ?? 0);
    }

    back() {
      this.guess.pop();
      this.show();
    }

    // The guessed values after the model's own next one.
    guesses() {
      const [first] = this.range(), from = this.known.length + 1;
      return this.guess.flatMap((values, at) => values.map((value, channel) => [CHANNELS * (first + at) + channel, value]))
        .filter(([at]) => at >= from && at < from + this.settings.k - 1 && at < this.length).map(([, value]) => value);
    }

    // Verify guesses, and show what became of them.
    async send() {
      if (this.done || !this.pending.length) return;
      const [, last] = this.range();
      if (!this.guess.length && last >= 0) return this.tell("Guess a pixel first: choose a colour.");
      const guesses = this.guesses(), from = this.known.length, block = [this.pending[0], ...guesses];
      this.stop();
      await this.guarded(async () => {
        const {accepted: [accepted], tokens, pending} = await this.question({c: textOf(this.known), by: "you", g: guesses, calls: 1});
        if (this.known.length !== from) return;
        this.known.push(...tokens);
        this.pending = pending;
        this.guess = [];
        this.count(accepted, this.verdict(from, block, accepted), block);
      });
    }

    verdict(from, block, accepted) {
      const own = accepted - 1, whole = accepted === block.length;
      const share = `${accepted} of ${plural(block.length, "value")} accepted: the model's own${block.length > 1 ? ` and ${own} of your ${block.length - 1}` : ""}.`;
      if (whole || this.pending.length === 0) return `${share}${block.length > 1 ? " The whole block!" : ""}`;
      return `${share} Then it has ${COLOURS[(from + accepted) % CHANNELS]} ${this.pending[0]}, and you guessed ${block[accepted]}.`;
    }

    label(from, at, value) {
      return [COLOURS[(from + at) % CHANNELS][0].toUpperCase(), value];
    }

    // Return calls that `by` drafts for the visitor.
    async play(by) {
      const from = this.known.length, {accepted, tokens, pending} = await this.question({c: textOf(this.known), by, calls: AHEAD});
      let at = 0;
      return accepted.map((count, call) => () => {
        if (this.known.length !== from + at) return null;
        this.known.push(...tokens.slice(at, at += count));
        this.pending = call === accepted.length - 1 ? pending : [tokens[at]];
        this.guess = [];
        return count;
      });
    }

    // Let the pixel on the left draft a whole face, and tell how far it is after each question.
    async measure(tell) {
      for (let known = [], calls = 0; known.length < this.length;) {
        const {accepted, tokens} = await this.question({c: textOf(known), by: "left", calls: CHUNK});
        known = [...known, ...tokens];
        calls += accepted.length;
        if (!tell(known.length, calls)) return;
      }
    }

    // Return the seconds of a call of one column, and of as many as there are heads.
    async cost() {
      const least = [1, this.heads].map(() => Infinity);
      for (let round = 0; round < ROUNDS; round++) for (const [at, k] of [1, this.heads].entries()) {
        const {seconds, accepted} = await this.question({k, calls: TIMED});
        least[at] = Math.min(least[at], seconds / accepted.length);
      }
      return least;
    }

    // Show all; the heads have made `calls` calls.
    show(calls = this.calls ?? 0) {
      this.calls = calls;
      const [first, last] = this.range(), next = Array.from({length: Math.max(last - first + 1, 0)}, (_, at) => first + at);
      this.paint(this.mine, this.known, next);
      const ends = this.lane?.accepted ?? [], shown = this.whole ? ends.length : calls, end = sum(ends.slice(0, shown)), begin = end - (ends[shown - 1] ?? 0);
      const block = this.whole || !end ? [] : [...new Set(Array.from({length: end - begin}, (_, at) => Math.floor((begin + at) / CHANNELS)))];
      this.paint(this.theirs, this.lane?.tokens.slice(0, end) ?? [], block);
      this.showStrip(first, next);
      this.redrawn?.();
    }

    paint(canvas, known, outlined) {
      const context = canvas.getContext("2d"), {side} = this;
      for (let at = 0; at < side * side; at++) {
        const from = CHANNELS * at, isKnown = known.length >= from + CHANNELS, [left, top] = [at % side * CELL, Math.floor(at / side) * CELL];
        const values = isKnown ? known.slice(from, from + CHANNELS) : this.input(at).map(value => Math.round(0.45 * value + 0.55 * 128));
        context.fillStyle = css(values);
        context.fillRect(left, top, CELL, CELL);
      }
      if (known.length >= this.length) return;
      for (const at of outlined) for (const [style, width] of [["#fff", 4], ["#1d4ed8", 2]]) {
        context.strokeStyle = style;
        context.lineWidth = width;
        context.strokeRect(at % side * CELL + 1, Math.floor(at / side) * CELL + 1, CELL - 2, CELL - 2);
      }
    }

    // The pixels before the guesses, those above, and the guesses.
    showStrip(first, next) {
      const columns = [...Array.from({length: BEFORE}, (_, at) => first - BEFORE + at), ...next];
      const cell = (colour, kind) => make("i", {class: kind, ...colour && {style: `background: ${css(colour)}`}});
      const above = columns.map(at => at < 0 ? cell(null, "") : cell(this.pixel(at - this.side), at < this.side ? "sr-input-cell" : ""));
      const row = columns.map((at, place) => at < 0 ? cell(null, "") : place < BEFORE ? cell(this.pixel(at), "")
        : cell(this.guess[at - first] && this.pixel(at), at - first === this.guess.length ? "sr-next" : "sr-cell"));
      this.strip.style.setProperty("--columns", columns.length);
      this.strip.replaceChildren(...above, ...row);
      const at = Math.min(first + this.guess.length, next.at(-1) ?? first), colours = this.pending.length && !this.done ? this.choices(at) : [];
      const own = this.pending.length ? `The model's own next value is ${COLOURS[this.known.length % CHANNELS]} ${this.pending[0]}.` : "";
      this.swatches.forEach((swatch, kind) => {
        swatch.replaceChildren(make("i", {style: `background: ${colours[kind] ? css(this.merged(at, colours[kind])) : "transparent"}`}), make("span", {}, make("b", {}, String(kind + 1)), ` ${this.names[kind]}`));
        swatch.disabled = !colours.length;
      });
      this.told.textContent = this.done ? "The face is complete." : own && `${own} Guess the ${next.length > 1 ? `${next.length} pixels` : "pixel"} after it: the outlined ones.`;
    }

    // A guess whose known colours are those of the model.
    merged(at, values) {
      return this.pixel(at, []).map((value, channel) => value ?? values[channel]);
    }

    key(event) {
      const act = {Enter: () => this.send(), Backspace: () => this.back(), r: () => this.repeat()}[event.key.length > 1 ? event.key : event.key.toLowerCase()]
        ?? (/^[1-6]$/.test(event.key) ? () => this.choose(Number(event.key) - 1) : null);
      return act;
    }

    words(k) {
      const pixels = Math.ceil((k - 1) / CHANNELS);
      return `${plural(k, "value")} a call: the model's own next one${k > 1 ? `, and ${k - 1} guessed, of ${pixels} to ${pixels + 1} pixels` : ""}`;
    }
  }

  // A translation, word by word.
  class Text {
    constructor(view) {
      Object.assign(this, {view, unit: "piece", heads: view.heads});
      this.mine = make("p", {class: "sr-line", lang: view.languages[1]});
      this.theirs = make("p", {class: "sr-line", lang: view.languages[1]});
      this.source = make("p", {class: "sr-line", lang: view.languages[0]});
      this.input = make("input", {type: "text", lang: view.languages[1], autocomplete: "off", autocapitalize: "off", spellcheck: "false"});
      this.input.addEventListener("input", () => this.offer());
      this.input.addEventListener("keydown", event => {
        if (event.key !== "Enter") return;
        event.preventDefault();
        event.stopPropagation();
        this.send();
      });
      this.chips = make("div", {class: "sr-words", role: "group", "aria-label": "Words, some of which come next"});
      this.told = make("p", {class: "sr-hint"});
      this.controls = make("div", {class: "sr-guess"}, this.source, this.told, this.chips, make("label", {}, "Your guess", this.input),
        make("div", {class: "sr-sends"}, button("Check the guess", () => this.send(), {class: "sr-send"}), button("Take back", () => this.back())));
      this.hint = "Words are compared as text; a word may be several pieces. Accepted is what the model would have said itself.";
    }

    async begin(choice) {
      this.choice = choice;
      this.pieces = choice.pieces;
      this.length = choice.pieces.length + 1;  // the end is a token, too
      this.at = 0;
      this.input.value = "";
      this.offer();
      this.show();
    }

    async run() {
      return () => {};
    }

    get lane() {
      return {accepted: this.settings.k > 1 ? this.choice.accepted[this.settings.k] : Array(this.length).fill(1)};
    }

    get done() {
      return this.at >= this.length;
    }

    // What follows the model's own next piece.
    rest() {
      return this.pieces.slice(this.at + 1);
    }

    // Offer the next words, mixed with words of the other sentences.
    offer() {
      const own = this.rest().join(""), typed = this.input.value.trim(), left = own.trimStart().startsWith(typed) ? own.trimStart().slice(typed.length) : own;
      const split = text => text.match(/\s*(?:[^\s.,]+|[.,])/g) ?? [], next = split(left).slice(0, NEXT).map(word => word.trim());
      const others = this.view.sentences.flatMap(({pieces}) => split(pieces.join("")).map(word => word.trim())).filter(word => !next.includes(word) && word !== ".");
      const turned = others.map((word, at) => [(at * 37 + this.at * 101 + this.choice.source.length * 17) % 97, word]).sort(([a], [b]) => a - b).map(([, word]) => word);
      const words = [...new Set([...next, ...turned])].slice(0, CHIPS).sort((a, b) => a.localeCompare(b));
      this.chips.replaceChildren(...this.done ? [] : words.map(word => button(word, () => {
        const glued = !this.input.value && !this.rest().join("").startsWith(" ") || /[.,]/.test(word);
        this.input.value += `${this.input.value && !glued ? " " : ""}${word}`;
        this.offer();
        this.chips.querySelector("button")?.focus();
      }, {lang: this.view.languages[1]})));
    }

    back() {
      this.input.value = this.input.value.trim().split(" ").slice(0, -1).join(" ");
      this.offer();
    }

    // How many pieces a guess matches, the model's own one included.
    accepted(guess, k) {
      const rest = this.rest(), given = guess.trim();
      let count = 1, text = "";
      for (const piece of rest) {
        text = (text + piece).trimStart();
        if (count >= k || !given.startsWith(text)) break;
        count++;
      }
      const whole = rest.length === count - 1 && given === rest.join("").trim() && this.at < this.pieces.length;
      return whole && count < k ? count + 1 : count;  // nothing is guessed after the end
    }

    async send() {
      if (this.done) return;
      const guess = this.input.value.trim();
      if (!guess && this.rest().length) return this.tell("Choose or type the next words first.");
      this.stop();
      const count = this.accepted(guess, this.settings.k), from = this.at;
      this.at += count;
      this.input.value = "";
      this.offer();
      const own = this.pieces[from] ?? "the end";
      const next = this.done ? " The translation is complete." : ` Next, it says \u201c${(this.pieces[this.at] ?? "the end").trim()}\u201d.`;
      this.count(count, `${plural(count, "piece")} accepted: the model's own \u201c${own.trim()}\u201d${count > 1 ? ` and ${count - 1} of your guess` : ""}.${next}`, []);
    }

    label() {
      return ["", ""];
    }

    async play() {
      const calls = this.lane.accepted, rest = this.length - this.at;  // recorded from the beginning
      let left = rest;
      const sizes = [];
      for (let call = 0; left > 0; call++) {
        const size = Math.min(calls[call % calls.length], left);
        sizes.push(size);
        left -= size;
      }
      return sizes.map(size => () => {
        this.at += size;
        this.input.value = "";
        this.offer();
        return size;
      });
    }

    async measure() {}

    async cost() {
      return null;
    }

    show(calls = this.calls ?? 0) {
      this.calls = calls;
      const end = this.whole ? this.length : sum(this.lane.accepted.slice(0, calls)), text = to => this.pieces.slice(0, to).join("");
      const cursor = this.done ? [] : [make("mark", {}, this.pieces[this.at] ?? " (end)")];
      this.source.replaceChildren(make("b", {}, "English: "), this.choice.source);
      this.mine.replaceChildren(text(this.at), ...cursor);
      this.theirs.replaceChildren(text(end) || "\u2026");
      this.told.textContent = this.done ? "The translation is complete." : "The marked piece is the model's own next one. Guess the words after it: choose, or type.";
      this.redrawn?.();
    }

    key() {
      return null;
    }

    words(k) {
      return `${plural(k, "piece")} a call: the model's own next one${k > 1 ? `, and ${k - 1} guessed` : ""}`;
    }
  }

  class Draft extends Drawn {
    draw(view) {
      if (this.body) {  // Gradio removes children that its own HTML does not have
        this.append(this.body);
        return this.listen();
      }
      this.view = view;
      this.waiting = [];
      this.turn = 0;
      this.games = {face: new Face(view, question => this.ask(question)), text: new Text(view.text)};
      this.settings = {k: view.heads, e: view.epsilon};
      for (const game of Object.values(this.games)) Object.assign(game, {settings: this.settings, tell: text => this.tell(text), stop: () => this.stop(),
        guarded: work => this.guarded(work), count: (...call) => this.count(...call), redrawn: () => this.counters()});
      this.build();
      this.append(this.body);
      this.listen();
    }

    listen() {
      this.listening?.abort();
      this.listening = new AbortController();
      const {signal} = this.listening;
      document.addEventListener("superres-answer", ({detail}) => this.answer(detail), {signal});
      document.addEventListener("superres-asking", () => this.repeat(), {signal});
      document.addEventListener("keydown", event => {  // a button that cannot be pressed any more loses the focus to the page
        if (this.offsetParent && (event.target === document.body || this.contains(event.target))) this.press(event);
      }, {signal});
      window.addEventListener("hashchange", () => { if (this.game && isLink(location.hash)) this.begin(); }, {signal});
      const seen = new IntersectionObserver(entries => {  // nothing is asked for a tab that nobody opens
        if (!entries.some(({isIntersecting}) => isIntersecting)) return;
        seen.disconnect();
        opened = true;
        if (!this.game) this.begin();
      });
      seen.observe(this);
      signal.addEventListener("abort", () => seen.disconnect());
    }

    disconnectedCallback() {
      super.disconnectedCallback();
      this.listening?.abort();
      this.stop();
    }

    // Questions, one at a time: see superres/web/draft.py.
    ask(question) {
      return new Promise((resolve, reject) => {
        this.waiting.push({text: JSON.stringify({...question, turn: ++this.turn}), resolve, reject});
        if (this.waiting.length === 1) this.repeat();
      });
    }

    repeat() {
      if (this.waiting.length) say("ask-draft", this.waiting[0].text);
    }

    answer({kind, question, error, wait, ...found}) {
      const [first] = this.waiting;
      if (kind !== "draft" || question !== first?.text) return;
      if (wait) return this.hold(wait);
      this.hold("");
      this.waiting.shift();
      if (error) first.reject(new Error(error));
      else first.resolve(found);
      this.repeat();
    }

    // Say why there is no answer yet, or, if there is one, what was to be said meanwhile.
    hold(text) {
      this.held = text;
      this.tell(this.said ?? "");
      this.body.classList.toggle("sr-held", Boolean(text));
      for (const one of [...this.plays, ...this.games.face.controls.querySelectorAll(".sr-sends button")]) one.disabled = Boolean(text) && this.kind === "face";
    }

    build() {
      const slider = (least, most, value, change) => {
        const input = make("input", {type: "range", min: least, max: most, value});
        input.addEventListener("input", change);
        return input;
      };
      this.kinds = ["face", "text"].map((kind, at) => button(["A face", "A translation"][at], () => this.choose(kind), {"aria-pressed": "false"}));
      this.choices = make("div", {class: "sr-choices", role: "group", "aria-label": "What is drafted"});
      this.size = slider(1, this.view.heads, this.settings.k, () => this.change());
      this.epsilon = slider(0, this.view.most, this.settings.e, () => this.change());
      this.sizeText = make("span");
      this.epsilonText = make("span");
      this.loose = make("label", {}, make("span", {}, make("b", {}, "\u03b5 "), this.epsilonText), this.epsilon);
      this.lanes = make("div", {class: "sr-lanes"});
      this.guess = make("div");
      this.verdict = make("ol", {class: "sr-checked", "aria-label": "The latest call", hidden: ""});
      this.status = make("p", {class: "sr-told", role: "status"});
      this.bars = make("div", {class: "sr-blocks"});
      this.price = make("p", {class: "sr-hint"});
      this.plays = Object.entries(NAMES).map(([by, name]) => button(name, () => this.play(by), {"aria-pressed": "false"}));
      this.share = button("Copy a link to this score", () => this.copy());
      this.keys = make("p", {class: "sr-hint"});
      const intro = make("p", {}, make("b", {}, "A model draws one value after another: "), "red, green and blue of each pixel. Guess what comes next: it checks all your guesses in ",
        make("b", {}, "one call"), ", keeps the first ones that are close enough to its own, and goes on from there. ",
        "The model's ", make("b", {}, "prediction heads"), " do the same, one call for each of yours: that is how it draws in fewer steps.");
      const top = make("div", {class: "sr-top"}, intro, make("div", {class: "sr-choices"}, ...this.kinds), this.choices);
      const left = make("div", {class: "sr-plays"}, this.lanes, this.status, this.verdict, this.guess,
        make("div", {class: "sr-sends"}, ...this.plays, button("Start again", () => this.choose(this.kind, this.chosen)), this.share));
      const right = make("div", {class: "sr-means"}, make("h3", {}, "Values accepted per call"), this.bars, make("label", {}, make("span", {}, make("b", {}, "k "), this.sizeText), this.size), this.loose,
        this.price, this.keys);
      this.heading = right.firstElementChild;
      this.body = make("div", {class: "sr-draft", tabindex: -1}, top, left, right);
    }

    // Begin with the score of the link, or the first face.
    begin() {
      const given = new URLSearchParams(isLink(linked) ? linked.slice(1) : ""), x = given.get("draft") ?? "", text = /^text(\d+)$/.exec(x);
      const whole = (name, least, most) => Math.min(Math.max(Math.trunc(Number(given.get(name))) || 0, least), most);
      linked = "";
      this.rival = given.has("c") && (text || x) ? {tokens: whole("t", 0, 1e5), calls: whole("c", 0, 1e5)} : null;
      if (given.has("k")) this.size.value = whole("k", 1, this.view.heads);
      if (given.has("e")) this.epsilon.value = whole("e", 0, this.view.most);
      if (text && this.view.text.sentences[text[1]]) return this.choose("text", this.view.text.sentences[text[1]], true);
      const isFace = /^[\w-]+$/.test(x) && Math.floor(x.length * 3 / 4) === CHANNELS * this.view.source ** 2;
      const face = this.view.faces.find(one => one.x === x) ?? (isFace ? {name: "The face of the link", x} : this.view.faces[0]);
      return this.choose("face", face, true);
    }

    // Begin a face or a sentence.
    async choose(kind, choice, keepsRival = this.rival && choice === this.chosen) {
      this.stop();
      const isOther = kind !== this.kind;
      Object.assign(this, {kind, game: this.games[kind], calls: [], chosen: choice ?? (kind === "face" ? this.view.faces[0] : this.view.text.sentences[0])});
      if (!keepsRival) this.rival = null;
      this.hold(this.held ?? "");
      const {game, chosen} = this;
      game.calls = 0;
      game.whole = false;
      this.left = null;
      this.kinds.forEach((one, at) => one.setAttribute("aria-pressed", String(["face", "text"][at] === kind)));
      if (isOther) {
        this.guess.replaceChildren(game.controls);
        this.keys.textContent = game.hint;
        this.loose.hidden = this.plays[0].hidden = kind === "text";
        this.heading.textContent = kind === "text" ? "Pieces accepted per call" : "Values accepted per call";
        this.size.max = game.heads;
        const figure = (name, picture, count) => make("figure", {class: `sr-lane sr-lane-${kind}`}, make("b", {}, name), picture, count);
        this.mine = make("figcaption");
        this.theirs = make("figcaption");
        this.lanes.replaceChildren(figure("You", game.mine, this.mine), figure("The heads", game.theirs, this.theirs));
      }
      this.choices.replaceChildren(...(kind === "face" ? this.view.faces : this.view.text.sentences).map((one, at) => {
        const pick = button("", () => this.choose(kind, one), {class: kind === "face" ? "sr-icon" : "", "aria-pressed": String(one === chosen), "aria-label": kind === "face" ? one.name : `Sentence ${at + 1}: ${one.source}`});
        pick.append(kind === "face" ? make("img", {src: one.icon, alt: ""}) : String(at + 1));
        return pick;
      }));
      this.verdict.hidden = true;
      const challenge = this.rival && `To beat: ${plural(this.rival.tokens, game.unit)} in ${plural(this.rival.calls, "call")}, ${mean(this.rival.tokens, this.rival.calls)} a call, by whoever sent you this link.`;
      this.tell(challenge || (kind === "face" ? "Choose colours for the outlined pixels." : "Choose the words that come next."));
      await this.guarded(async () => {
        await Promise.all([game.begin(chosen), this.change(false)]);
        if (!this.cost) this.showCost(await game.cost());
      });
    }

    // A setting is new: draw the heads' lane anew.
    async change(shows = true) {
      Object.assign(this.settings, {k: this.size.valueAsNumber, e: this.epsilon.valueAsNumber});
      const {game} = this, {k, e} = this.settings, version = this.version = {};
      this.sizeText.textContent = game.words(k);
      this.epsilonText.textContent = e ? `${plural(e, "grey level")}: a guess passes if it is at most so far from the model's choice` : "0: a guess must be the model's choice exactly";
      this.size.setAttribute("aria-label", `k: ${game.words(k)}`);
      this.epsilon.setAttribute("aria-label", `Epsilon: ${this.epsilonText.textContent}`);
      if (game.guess) game.guess = [];
      game.whole = shows;
      this.left = null;
      if (shows) game.show();
      await this.guarded(async () => {
        const take = await game.run();
        if (version !== this.version) return;
        take();
        game.show();
        await game.measure((tokens, calls) => {
          if (version !== this.version) return false;
          this.left = {tokens, calls};
          this.counters();
          return true;
        });
      });
    }

    async guarded(work) {
      try {
        await work();
      } catch (error) {
        this.tell(sentence(error.message.replace(/\.$/, "")));
      }
    }

    // A translation is recorded, and waits for nothing.
    tell(text) {
      this.said = text;
      this.status.textContent = this.kind === "face" && this.held || text;
    }

    // A call of the visitor's: the heads do one, too.
    count(accepted, text, block) {
      this.calls.push(accepted);
      const from = this.game.known ? this.game.known.length - accepted : 0, {game, rival} = this;
      game.whole = false;
      this.verdict.hidden = !block.length;
      this.verdict.replaceChildren(...block.map((value, at) => {
        const state = at < accepted ? "accepted" : at === accepted ? "broken" : "rejected", [name, text] = game.label(from, at, value);
        return make("li", {class: `sr-${state}`, title: at ? `Your guess: ${state}` : "The model's own"}, make("b", {}, `${name} ${text}`), make("span", {}, {accepted: "\u2713", broken: "\u2715", rejected: "\u2013"}[state]));
      }));
      game.show(this.calls.length);
      const total = sum(this.calls), beaten = rival && this.calls.length === rival.calls ? ` You have ${number(total)}, and ${number(rival.tokens)} were to be beaten: ${total > rival.tokens ? "you win!" : total === rival.tokens ? "a draw." : "not yet."}` : "";
      this.tell(text + beaten + (game.done && this.kind === "face" ? ` The face is complete: ${plural(this.calls.length, "call")} instead of ${number(game.length)}.` : ""));
    }

    // Let somebody draft in the visitor's place, one call after another.
    async play(by) {
      const before = this.playing;
      this.stop();
      if (before?.by === by) return;
      const run = this.playing = {by}, {game} = this, pause = matchMedia("(prefers-reduced-motion: reduce)").matches ? CALM : TICK;
      this.plays.forEach((one, at) => {
        const isOn = Object.keys(NAMES)[at] === by;
        one.setAttribute("aria-pressed", String(isOn));
        one.textContent = isOn ? "Stop" : NAMES[Object.keys(NAMES)[at]];
      });
      this.status.setAttribute("aria-live", "off");  // a screen reader cannot follow
      await this.guarded(async () => {
        while (run === this.playing && !game.done) {
          for (const call of await game.play(by)) {
            if (run !== this.playing) return;
            const accepted = call();
            if (accepted === null) return;
            this.count(accepted, by === "left" ? `The pixel on the left drafts in your place: ${plural(accepted, "value")} accepted.` : `The heads draft in your place: ${plural(accepted, game.unit)} accepted.`, []);
            await new Promise(resolve => setTimeout(resolve, pause));
          }
        }
      });
      if (run === this.playing) this.stop();
    }

    stop() {
      this.playing = null;
      this.plays?.forEach((one, at) => {
        one.setAttribute("aria-pressed", "false");
        one.textContent = Object.values(NAMES)[at];
      });
      this.status?.removeAttribute("aria-live");
    }

    counters() {
      const {game, calls} = this, tokens = sum(calls), lane = game.lane?.accepted ?? [], made = game.whole ? lane.length : Math.min(calls.length, lane.length), theirs = sum(lane.slice(0, made));
      const told = (name, count) => `${plural(name, "call")}, ${plural(count, game.unit)}, ${mean(count, name)} a call`;
      this.mine.textContent = told(calls.length, tokens);
      this.theirs.textContent = told(made, theirs) + (game.whole && lane.length ? ": the whole" : "");
      const {k} = this.settings, bar = (name, value, note, kind = "") => make("div", {class: kind}, make("span", {}, name, note ? make("small", {}, ` ${note}`) : ""), make("b", {}, value === null ? "\u2026" : value.toFixed(1)),
        make("i", {style: `--share: ${(value ?? 0) / k}`}));
      const all = this.kind === "face" ? "whole face" : "whole sentence", share = this.left ? `, ${Math.round(100 * this.left.tokens / game.length)} %` : "";
      this.bars.replaceChildren(...[
        bar("One value per call", 1, ""),
        ...this.kind === "face" ? [bar("The pixel on the left", this.left ? this.left.tokens / this.left.calls : null, `${all}${this.left && this.left.tokens < game.length ? share : ""}`)] : [],
        bar("You", calls.length ? tokens / calls.length : null, calls.length ? "so far" : "", "sr-you"),
        bar("The prediction heads", lane.length ? sum(lane) / lane.length : null, all, "sr-them")]);
      this.share.disabled = !calls.length;
    }

    showCost(cost) {
      if (!cost) return;
      this.cost = cost;
      const [one, all] = cost, {heads} = this.view, ratio = all / one, digits = value => Number(value.toPrecision(2));
      const time = value => value < 1e-3 ? `${digits(1e6 * value)} \u00b5s` : `${digits(1e3 * value)} ms`;
      const pays = ratio < 1.2 ? "Blocks are nearly free here." : ratio < heads ? `Blocks of ${heads} save time if a call accepts more than ${ratio.toFixed(1)}.` : "Blocks save calls here, but no time: one thread checks value after value.";
      this.price.textContent = `Where the model runs, a call that checks one value took ${time(one)} just now, and one that checks and proposes ${heads} took ${time(all)}: ${ratio.toFixed(1)} times as long. ${pays}`;
    }

    press(event) {
      const tag = event.target.tagName, isText = tag === "INPUT" && event.target.type === "text";
      if (event.ctrlKey || event.altKey || event.metaKey || isText) return;
      if (event.key === "Enter" && (tag === "BUTTON" && !event.target.classList.contains("sr-swatch") || tag === "INPUT")) return;  // the control's own key
      const act = this.game?.key(event);
      if (!act) return;
      event.preventDefault();
      this.guarded(act);
    }

    // Copy the address of the score.
    async copy() {
      const {k, e} = this.settings, name = this.kind === "face" ? this.chosen.x : `text${this.view.text.sentences.indexOf(this.chosen)}`;
      const link = `${location.origin}${location.pathname}${location.search}#draft=${name}&k=${k}${this.kind === "face" ? `&e=${e}` : ""}&t=${sum(this.calls)}&c=${this.calls.length}`;
      try {
        await navigator.clipboard.writeText(link);
        this.tell("The link is copied: whoever opens it has this score to beat.");
      } catch {
        this.tell(`Copy this link: ${link}`);
      }
    }
  }

  if (!customElements.get("superres-draft")) customElements.define("superres-draft", Draft);
})();
