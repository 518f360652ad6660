// <superres-paint data-view="..."> is a box of pixels to paint, and the faces that a model draws from them, after each stroke.
// The box asks by events "superres-ask-KIND", and "superres-answer" has the answers: of a server with superres/web/paint.py
// (gradio.js), or of the engine in this browser (../site/site.js). "superres-input" has a photo's or example's pixels. A link holds the pixels.
// The first example's faces come with the page (view.first), and are asked of nobody.
"use strict";
(() => {
  const {make, Drawn} = superres;
  const PAUSE = 250;  // milliseconds without a stroke, after which the large face is drawn
  const LATE = 400;  // milliseconds after which the page says that it waits
  const STEPS_BACK = 100;  // strokes that can be undone
  const TEMPERATURES = [0.01, 9];  // the lowest and the highest of links
  const ENLARGED = "Your pixels, enlarged", NONE = "There is no face yet", ONE = "Only the likeliest face is finished";
  const NOT_THE_SAME = "Not the same picture as that of the link: another version or engine drew that one, or the link was changed. The address keeps the link.";
  const PALETTE = {black: "#1b1512", "dark brown": "#4a2f20", brown: "#8a5a3c", tan: "#c68f68", skin: "#e8b894", light: "#f7dcc6",
    white: "#f8f8f5", grey: "#8d8d8d", red: "#c8322b", orange: "#e88a2d", yellow: "#f3cf3f", green: "#4f9d45", blue: "#3d6fc4", purple: "#7c4fa3"};
  const SMILEY = "llyyyyll lyyyyyyl yykyykyy yykyykyy yyyyyyyy ykyyyyky lykkkkyl llyyyyll";  // a letter for each pixel, row by row
  const LETTERS = {k: PALETTE.black, y: PALETTE.yellow, l: "#9fc6e8"};

  const rgb = colour => [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
  const hex = ([red, green, blue]) => `#${[red, green, blue].map(value => value.toString(16).padStart(2, "0")).join("")}`;
  const textOf = pixels => btoa(String.fromCharCode(...pixels)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  const ask = (name, detail) => document.dispatchEvent(new CustomEvent(`superres-${name}`, {detail}));

  function pixelsOf(text, count) {
    try {
      const pixels = Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), letter => letter.charCodeAt(0));
      return pixels.length === count ? pixels : null;
    } catch {
      return null;
    }
  }

  const paintingOf = letters => Uint8Array.from([...letters.replace(/ /g, "")].flatMap(letter => rgb(LETTERS[letter])));

  // The pixels, and what can be undone.
  class Pixels {
    constructor(side) {
      this.side = side;
      this.values = new Uint8Array(3 * side * side).fill(128);
      this.past = [];
    }

    colour(at) {
      return hex(this.values.subarray(3 * at, 3 * at + 3));
    }

    // Remember the pixels before a stroke.
    begin() {
      this.past.push(this.values.slice());
      this.past.splice(0, this.past.length - STEPS_BACK);
    }

    undo() {
      if (this.past.length) this.values = this.past.pop();
    }

    replace(values) {
      this.begin();
      this.values = values;
    }

    // Paint a pixel, with `mirrored` also the one across; return whether one has changed.
    paint(at, colour, mirrored) {
      const [x, y] = [at % this.side, Math.floor(at / this.side)], places = mirrored ? [at, y * this.side + this.side - 1 - x] : [at];
      const changed = places.filter(place => this.colour(place) !== colour);
      for (const place of changed) this.values.set(rgb(colour), 3 * place);
      return changed.length > 0;
    }
  }

  class Paint extends Drawn {
    draw(view) {
      if (this.body) {  // Gradio removes children that its own HTML does not have, and may move the element
        this.append(this.body);
        return this.listen();
      }
      this.view = view;
      this.pixels = new Pixels(view.side);
      this.seed = 0;
      this.temperature = view.temperature;
      this.score = {right: 0, asked: 0};  // of the question which picture is real
      superres.photo.accept(view.suffixes);
      this.painted = "";
      this.asked = {};  // the latest question of each kind
      this.turn = 0;  // of a question: Gradio tells nothing of an answer that is the same as the one before
      this.chosen = 0;  // 0 is the likeliest face, others are samples
      this.entries = new Map();  // of the browser's history, by what its state has
      this.missing = "";  // why nothing can be asked yet
      this.colour = PALETTE.skin;
      this.grid = this.gridOf();
      this.face = make("img", {class: "sr-drawn", alt: "The face that the model draws from these pixels"});
      this.caption = make("figcaption");
      this.frame = make("figure", {class: "sr-canvas"}, this.face, this.caption);
      this.status = make("p", {class: "sr-told", role: "status"});
      this.others = make("div", {class: "sr-others", role: "group", "aria-label": "Other people with the same pixels"});
      this.bars = make("div", {class: "sr-bars"});
      this.question = make("p", {role: "status"});
      const left = make("div", {class: "sr-box"}, this.grid, this.tools(), this.chips());
      const right = make("div", {class: "sr-portrait"}, this.frame, this.status, this.bars, this.actions());
      this.reseeds = this.button("Other people", () => this.reseed());
      const more = make("div", {class: "sr-strangers"}, this.question, this.others, this.reseeds);
      this.body = make("div", {class: "sr-paint"}, left, right, more);
      this.append(this.body);
      this.listen();
      this.load();
      this.replaceOpening();
    }

    disconnectedCallback() {
      super.disconnectedCallback();
      this.listening?.abort();
      clearTimeout(this.pause);
      clearTimeout(this.late);
    }

    listen() {
      this.listening?.abort();
      this.listening = new AbortController();
      const on = (target, name, handle) => target.addEventListener(name, handle, {signal: this.listening.signal});
      on(document, "superres-answer", event => this.answer(event.detail));
      on(window, "hashchange", () => { if (!history.state?.superres) this.open(); });
      on(window, "popstate", event => { if (event.state?.superres) this.go(event.state.superres); });
      on(document, "superres-missing", event => { this.missing = event.detail; this.enable(); });
      on(document, "paste", event => this.paste(event));
      on(document, "superres-photo", event => this.read(event.detail.name));
      on(document, "superres-input", event => this.take(event.detail));
      on(document, "superres-refused", event => this.refuse(event.detail));
      on(document, "superres-back", () => this.stay());
      superres.photo.receive(this, this.listening.signal);
      on(document, "superres-asking", () => this.repeat());  // those that take questions may come later than the box
    }

    // Begin with the pixels of the link, or of the example.
    load() {
      const {first} = this.view;
      this.example = first?.x;
      this.linked = this.open() || Boolean(first);  // the first example does not replace the pixels of a link
      if (!this.entry) {
        this.mark();
        if (first) this.restart();
        else this.enable();
      }
      ask("ready");
    }

    // Take the place of what the server's page shows before (superres/web/opening.py); the bars fill on from where they are.
    replaceOpening() {
      const opening = document.getElementById("first"), played = opening?.getAnimations({subtree: true})[0]?.currentTime;
      this.bars.style.setProperty("--played", `${-(played ?? 0)}ms`);
      opening?.remove();
    }

    // Show the faces that came with the page.
    restart() {
      Object.assign(this, {kept: false, seed: 0, temperature: this.view.temperature});
      this.pixels.values = pixelsOf(this.view.first.x, this.pixels.values.length);
      this.changed();
    }

    // Give the entry of the browser's history a name, and remember what the one before shows: a photo's pixels are in no address.
    mark(address) {
      this.leave();
      this.entry = `${Date.now()}-${this.entries.size}`;
      if (address === undefined) history.replaceState({superres: this.entry}, "");
      else history.pushState({superres: this.entry}, "", address);
    }

    leave() {
      const {entry, kept, seed, temperature, chosen, promised} = this;
      if (entry) this.entries.set(entry, {values: this.pixels.values.slice(), kept, seed, temperature, chosen, promised});
    }

    // Show what an entry of the browser's history has shown.
    go(entry) {
      if (entry === this.entry) return;
      const known = this.entries.get(entry);
      this.leave();
      this.entry = entry;
      this.input = null;
      if (known) {
        const {values, chosen, promised, ...rest} = known;
        Object.assign(this, rest);
        this.set(values.slice(), chosen);
        this.promised = promised;
      } else if (!this.open(false) && this.view.first) this.restart();
    }

    // Begin a new entry, unless these are the pixels that are shown.
    enter(values, kept) {
      const text = textOf(values);
      if (text !== textOf(this.pixels.values)) this.mark(kept ? `#x=${text}` : location.pathname + location.search);
      this.kept = kept;
      this.set(values);
    }

    // A face that was pasted as emoji.
    paste(event) {
      const found = this.offsetParent && superres.emoji?.fromEmoji(event.clipboardData.getData("text/plain"), this.view.side);
      if (!found) return;
      event.preventDefault();
      this.paintAll(found.values);
      this.refused = found.note;
    }

    repeat() {
      if (this.painted) ask("painted", this.painted);
      if (this.first && this.first === this.view.first?.faces[0]) ask("known", this.view.first.x);
      for (const [kind, question] of Object.entries(this.asked)) ask(`ask-${kind}`, question);
    }

    button(text, action, attributes = {}) {
      const button = make("button", {type: "button", ...attributes}, text);
      button.addEventListener("click", action);
      return button;
    }

    gridOf() {
      const {side} = this.view;
      this.cells = Array.from({length: side * side}, (_, at) => make("div", {role: "gridcell", tabindex: at ? -1 : 0}));
      const rows = Array.from({length: side}, (_, y) => make("div", {role: "row"}, ...this.cells.slice(y * side, (y + 1) * side)));
      const grid = make("div", {class: "sr-cells", role: "grid", "aria-label": `${side}x${side} pixels: arrow keys move, Space paints, P picks a colour, Ctrl+Z undoes, Ctrl+C copies the face`,
        style: `--side: ${side}`}, ...rows);
      grid.addEventListener("pointerdown", event => {
        if (event.button > 0) return;
        event.preventDefault();
        grid.setPointerCapture(event.pointerId);
        this.stroke(event, true);
      });
      grid.addEventListener("pointermove", event => {
        if (grid.hasPointerCapture(event.pointerId)) this.stroke(event, false);
      });
      grid.addEventListener("keydown", event => this.key(event));
      return grid;
    }

    stroke(event, begins) {
      const {left, top, width, height} = this.grid.getBoundingClientRect(), {side} = this.view;
      const [x, y] = [(event.clientX - left) / width, (event.clientY - top) / height].map(share => Math.floor(share * side));
      if (x < 0 || y < 0 || x >= side || y >= side) return;
      const at = y * side + x;
      if (begins) this.focusCell(at);
      if (this.picks.checked) return begins && this.pick(at);
      if (begins) this.pixels.begin();
      this.kept = true;
      if (this.pixels.paint(at, this.colour, this.mirrors.checked)) this.changed();
    }

    key(event) {
      const {side} = this.view, at = this.cells.indexOf(document.activeElement);
      const moves = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -side, ArrowDown: side};
      if (at < 0) return;
      if (event.key in moves) {
        const next = at + moves[event.key], sameRow = Math.floor(next / side) === Math.floor(at / side);
        if (next >= 0 && next < side * side && (sameRow || Math.abs(moves[event.key]) === side)) this.focusCell(next);
      } else if (event.key === " " || event.key === "Enter") {
        this.pixels.begin();
        this.kept = true;
        if (this.pixels.paint(at, this.colour, this.mirrors.checked)) this.changed();
      } else if (event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey)) this.undo();
      else if (event.key.toLowerCase() === "c" && (event.ctrlKey || event.metaKey)) this.copy.click();
      else if (event.key.toLowerCase() === "p" && !event.ctrlKey && !event.metaKey) this.pick(at);
      else return;
      event.preventDefault();
    }

    focusCell(at) {
      for (const cell of this.cells) cell.tabIndex = -1;
      this.cells[at].tabIndex = 0;
      this.cells[at].focus({focusVisible: false});
    }

    pick(at) {
      this.picks.checked = false;
      this.choose(this.pixels.colour(at));
    }

    choose(colour) {
      this.colour = colour;
      this.custom.value = colour;
      for (const radio of this.radios) radio.checked = radio.value === colour;
    }

    undo() {
      this.pixels.undo();
      this.changed();
    }

    tools() {
      this.radios = Object.entries(PALETTE).map(([name, value]) => make("input", {type: "radio", name: "sr-colour", value, "aria-label": name, style: `--colour: ${value}`}));
      for (const radio of this.radios) radio.addEventListener("change", () => this.choose(radio.value));
      this.custom = make("input", {type: "color", "aria-label": "Any colour"});
      this.custom.addEventListener("input", () => this.choose(this.custom.value));
      this.picks = make("input", {type: "checkbox"});
      this.mirrors = make("input", {type: "checkbox"});
      this.choose(this.colour);
      return make("div", {class: "sr-tools"},
        make("div", {class: "sr-palette", role: "radiogroup", "aria-label": "Colour"}, ...this.radios, this.custom),
        make("label", {}, this.picks, "Pick a colour"), make("label", {}, this.mirrors, "Mirror"), this.button("Undo", () => this.undo()));
    }

    // What to begin with, and what to do with a face: the edits of edits.js, and a joke.
    chips() {
      const {side, examples} = this.view, count = this.pixels.values.length, {names, apply, surprise} = superres.edits;
      const chip = (name, values) => this.button(name, () => this.paintAll(values()));
      const camera = superres.photo.hasCamera ? [this.button("Camera", () => superres.photo.photograph(text => this.state("failed", text)))] : [];
      const people = this.people = examples.filter(({cells}) => cells).map(({cells}) => pixelsOf(cells, count));
      const edits = people.length < 2 ? [] : [...names.map(name => chip(name, () => apply(name, this.pixels.values, side, people))),
        chip("Surprise me", () => surprise(people, side))];
      const icons = examples.map(({name, icon}, at) => {
        const button = this.button("", () => this.begin(at), {class: "sr-icon", "aria-label": name, title: name});
        button.append(make("img", {src: icon, alt: ""}));
        return button;
      });
      const smiley = paintingOf(SMILEY).length === count ? [chip("Smiley", () => paintingOf(SMILEY))] : [];
      return make("div", {class: "sr-chips", role: "group", "aria-label": "Begin with, or change the face"}, this.button("Photo", superres.photo.choose), ...camera,
        ...icons, ...edits, ...this.day(people), ...smiley);
    }

    // The face of the day, which is made of the examples.
    day(people) {
      return people.length > 1 ? [this.button("Face of the day", () => this.paintAll(superres.today(people, this.view.side).values))] : [];
    }

    actions() {
      this.sharp = make("input", {type: "checkbox"});
      this.sharp.addEventListener("change", () => this.face.classList.toggle("sr-sharp", this.sharp.checked));
      this.polish = make("input", {type: "checkbox"});
      this.polish.addEventListener("change", () => this.polish.checked && !this.done ? this.ask("finished") : this.picture());
      this.save = this.button("Save", () => make("a", {download: `face.${this.face.src.match(/^data:image\/(\w+)/)[1]}`, href: this.face.src}).click());
      const copies = (text, remedy, copy) => {
        const button = this.button(text, async () => {
          try {
            await copy();
            button.textContent = "Copied";
          } catch {
            button.textContent = remedy;
          }
          setTimeout(() => { button.textContent = text; }, 2000);
        });
        return button;
      };
      const link = copies("Copy link", "Copy it from the address bar", () => {
        this.promised = null;  // the copy is of the picture that is shown
        if (this.shown) this.status.textContent = this.told(this.shown);
        history.replaceState(history.state, "", this.link());
        return navigator.clipboard.writeText(location.href);
      });
      this.copy = copies("Copy picture", "Save it instead", async () => {
        const canvas = make("canvas", {width: this.face.naturalWidth, height: this.face.naturalHeight});
        canvas.getContext("2d").drawImage(this.face, 0, 0);
        const blob = await new Promise(done => canvas.toBlob(done));
        await navigator.clipboard.write([new ClipboardItem({[blob.type]: blob})]);
      });
      const emoji = superres.emoji ? [copies("Copy as emoji", "It cannot be copied", () => navigator.clipboard.writeText(superres.emoji.toEmoji(this.pixels.values, this.view.side)))] : [];
      this.files = Object.fromEntries(this.view.files.map(kind => [kind, this.button(`Save ${kind}`, () => this.ask(kind))]));
      return make("div", {class: "sr-deeds"}, make("label", {}, this.sharp, "Pixels"), make("label", {}, this.polish, "Finished"),
        this.save, this.copy, link, ...emoji, ...Object.values(this.files));
    }

    // What cannot be done yet looks so, and says why.
    enable() {
      const none = this.shown ? "" : NONE, files = Object.entries(this.files);
      const reasons = [[this.save, none], [this.copy, none], [this.reseeds, this.first ? this.missing : NONE], [this.polish, none || this.missing || (this.chosen ? ONE : "")],
        ...files.map(([kind, button]) => [button, none || this.missing || (this.asked[kind] ? "It is being made" : "")])];
      for (const [control, reason] of reasons) {
        control.disabled = Boolean(reason);
        control.ariaDisabled = String(control.disabled);
        control.title = (control.closest("label") ?? control).title = reason;
      }
    }

    // Begin with an example.
    begin(example) {
      this.read(this.view.examples[example].name);
      ask("example", example);
    }

    // A photo or example is being read: the face that is shown is not its face, and earlier questions have no answer.
    read(name) {
      this.given = name;
      this.reading = this.isNew = true;
      this.linked = false;
      this.input = null;
      clearTimeout(this.pause);
      this.clear();
      this.asked = {};
      this.state("reading", `Reading ${name}…`);
    }

    // Say why the photo cannot be read. What the visitor has painted since then stays.
    refuse(text) {
      this.input = null;
      this.refused = `${this.given ? `${this.given}: ` : ""}${text}`;
      this.example = this.truth = "";
      if (this.reading) {
        this.reading = false;
        this.painted = "";
        this.clearOthers();
        this.fail(this.refused);
      } else {
        if (this.painted) ask("painted", this.painted);
        this.status.textContent = this.refused;
      }
    }

    // Nothing of the photo is used: the pixels stay, and are the visitor's.
    stay() {
      this.example = this.truth = "";
      this.changed(this.chosen);
    }

    // The digest of the link that was opened, if what is shown is its person; a link of today's picture would lose it.
    linkDigest() {
      return this.promised?.chosen === this.chosen ? this.promised.digest : null;
    }

    // The address of what is shown: pixels, and of a sample its temperature, seed and number, with the digest of its picture.
    link() {
      const sample = this.chosen ? `&t=${this.temperature}&s=${this.seed}&n=${this.chosen}` : "", digest = this.linkDigest() ?? this.shown?.digest;
      return `#x=${textOf(this.pixels.values)}${sample}${digest ? `&d=${digest}` : ""}`;
    }

    // Show what the address holds, as an entry of the history that has no name yet if it is `fresh`; return whether it holds pixels.
    open(fresh = true) {
      const given = new URLSearchParams(location.hash.slice(1)), pixels = pixelsOf(given.get("x") ?? "", this.pixels.values.length);
      if (!pixels) return false;
      if (fresh) this.mark();
      const number = (name, most) => Math.min(Math.max(Math.trunc(Number(given.get(name))) || 0, 0), most);
      this.seed = number("s", 2 ** 31);
      const temperature = Number(given.get("t"));
      this.temperature = temperature >= TEMPERATURES[0] && temperature <= TEMPERATURES[1] ? temperature : this.view.temperature;
      this.kept = true;
      const promised = {digest: given.get("d"), chosen: number("n", this.view.others)};
      this.set(pixels, promised.chosen);
      this.promised = promised;
      return true;
    }

    // Take the pixels of a photo or example, `uri`; `truth` is the larger picture, if known. They are not in the address.
    take({uri, truth}) {
      const image = this.input = make("img", {src: uri});
      image.decode().then(() => {
        if (image !== this.input) return;
        const context = make("canvas", {width: this.view.side, height: this.view.side}).getContext("2d", {colorSpace: "srgb"});
        context.drawImage(image, 0, 0);
        const values = context.getImageData(0, 0, this.view.side, this.view.side).data.filter((_, at) => at % 4 !== 3);
        this.example = textOf(values);
        this.truth = truth;
        if (!this.linked) {
          const isScore = location.hash.startsWith("#draft");  // of the game
          if (!this.isNew && !isScore) history.replaceState(history.state, "", location.pathname + location.search);
          this.kept = false;
          if (this.isNew) this.enter(Uint8Array.from(values), false);
          else this.set(Uint8Array.from(values));
        }
        this.linked = this.isNew = false;
      }, () => {});
    }

    set(values, chosen = 0) {
      this.pixels.replace(values);
      this.enlarge();
      this.changed(chosen);
    }

    // Show the pixels themselves where the face will be.
    enlarge() {
      const {side} = this.view, canvas = make("canvas", {width: side, height: side}), image = new ImageData(side, side);
      for (let at = 0; at < side * side; at++) image.data.set([...this.pixels.values.subarray(3 * at, 3 * at + 3), 255], 4 * at);
      canvas.getContext("2d").putImageData(image, 0, 0);
      this.face.src = canvas.toDataURL();
      this.caption.textContent = ENLARGED;
    }

    // Pixels that the visitor has painted are in the address, so that they are there after a reload.
    paintAll(values) {
      this.enter(values, true);
    }

    reseed() {
      this.seed++;
      if (!this.first) return this.changed();
      this.promised = null;
      this.chosen = 0;
      this.clearOthers();
      this.show(this.first);
      this.ask("others");
    }

    // The pixels are new: draw the small picture at once, and the others when the visitor pauses.
    changed(chosen = 0) {
      this.chosen = chosen;
      this.reading = false;
      this.refused = "";
      this.clear();
      this.cells.forEach((cell, at) => {
        const colour = this.pixels.colour(at);
        cell.style.background = colour;
        cell.setAttribute("aria-label", `row ${Math.floor(at / this.view.side) + 1}, column ${at % this.view.side + 1}: ${colour}`);
      });
      const text = textOf(this.pixels.values), painted = text === this.example ? "" : text;
      if (painted !== this.painted) ask("painted", painted);
      this.painted = painted;
      this.clearOthers();
      clearTimeout(this.pause);
      if (this.known()) return;
      if (this.view.stages > 1) this.ask("small");
      this.pause = setTimeout(() => this.ask("large"), this.view.stages > 1 ? PAUSE : 0);
    }

    // Show the faces that came with the page if the pixels are theirs, and return whether they are.
    known() {
      const {first, temperature} = this.view;
      if (textOf(this.pixels.values) !== first?.x || this.seed || this.temperature !== temperature) return false;
      this.asked = {};
      this.first = first.faces[0];
      this.showOthers(first.faces.slice(1));
      ask("known", first.x);
      return true;
    }

    // Forget what was drawn; a file of it is not saved.
    clear() {
      this.first = this.shown = this.promised = this.done = null;
      this.polish.checked = false;
      for (const kind of ["finished", ...Object.keys(this.files)]) delete this.asked[kind];
    }

    // Ask for a kind of picture; `number` is that of the sample that becomes the large face, or 0 for the likeliest.
    ask(kind, number = this.chosen) {
      const question = {x: textOf(this.pixels.values), t: this.temperature, s: this.seed, n: number, turn: ++this.turn};
      this.asked[kind] = JSON.stringify(kind === "card" ? {...question, link: location.host + location.pathname} : question);
      if (kind in this.files) this.enable();
      else if (kind === "finished") this.caption.textContent = "Finishing…";
      else if (kind !== "others" && number === this.chosen) this.state("drawing");
      ask(`ask-${kind}`, this.asked[kind]);
    }

    state(name, text = "") {
      this.body.dataset.state = name;
      clearTimeout(this.late);
      if (name === "drawing") this.late = setTimeout(() => { this.status.textContent = this.chosen ? `Drawing person ${this.chosen}…` : "Drawing…"; }, LATE);
      else this.status.textContent = text;
      this.enable();
    }

    // Show an answer, unless the pixels have changed since its question. It has what is drawn, an `error`, why it must `wait`,
    // or, if it is `partial`, what is drawn so far.
    answer({kind, question, error, wait, partial, faces, file, uri}) {
      if (kind in this.files && question === this.asked[kind]) return this.keep(kind, error ?? wait, file, uri);
      if (question !== this.asked[kind]) return;
      const {x, n} = JSON.parse(question);
      if (x !== textOf(this.pixels.values)) return;
      if (wait) this.wait(wait);
      else if (kind === "finished") this.finish(error, partial ? null : faces?.[0]);
      else if (error) this.fail(error);
      else if (partial || kind === "small") this.preview(kind, faces, n);
      else if (kind === "others") this.showOthers(faces);
      else if (n) {  // the person of a link comes first, and then the likeliest face and all others
        this.show(faces[0]);
        this.ask("large", 0);
      } else {
        this.first = faces[0];
        if (!this.chosen) this.show(this.first);
        this.ask("others");
      }
    }

    // Nothing draws the face yet: an earlier one is not that of the pixels.
    wait(text) {
      this.enlarge();
      this.compared = null;
      this.bars.replaceChildren();
      this.state("waiting", text === true ? "" : text);  // true: the page says it elsewhere
    }

    // Show the finished face, or say why there is none.
    finish(error, face) {
      if (error) {
        this.polish.checked = false;
        this.status.textContent = error;
      } else if (!face) return;
      this.done = face;
      this.picture();
    }

    // Show no face, but why there is none.
    fail(text) {
      this.shown = this.compared = null;
      this.face.removeAttribute("src");
      this.caption.textContent = "";
      this.bars.replaceChildren();
      this.state("failed", text);
    }

    preview(kind, faces, number) {
      if (kind !== "others") {
        if (number !== this.chosen || this.shown) return;
        this.face.src = faces[0].uri;
        this.caption.textContent = "";
      } else if (!this.asks && !this.samples.length) this.others.children[faces.length - 1].replaceChildren(make("img", {src: faces.at(-1).uri, alt: ""}));
    }

    // Save a file, or say why there is none.
    keep(kind, error, file, uri) {
      delete this.asked[kind];
      this.enable();
      if (error) this.status.textContent = error;
      else make("a", {download: file, href: uri}).click();
    }

    show(face) {
      if (!face) return;
      this.shown = face;
      this.picture();
      this.state("drawn", this.told(face));
      this.compare(face);
      if (this.kept) history.replaceState(history.state, "", this.link());
    }

    // Show the face as it was drawn or, where that is chosen, the finished one; link, card and steps are those of the drawn one.
    picture() {
      const done = this.polish.checked && !this.chosen ? this.done : null;
      this.face.src = (done ?? this.shown).uri;
      this.caption.textContent = done ? done.note ?? "Finished: the mean of several pictures, sharpened" : "";
    }

    // Say who is shown, and whether the picture is that of the link which was opened.
    told(face) {
      const digest = this.linkDigest();
      return [this.refused, this.chosen ? `Person ${this.chosen}: sample ${this.chosen} of seed ${this.seed}.` : "",
        !digest ? "" : face.digest === digest ? "The same picture as that of the link." : NOT_THE_SAME].filter(Boolean).join(" ");
    }

    // Show the number of steps beside that of one pixel value per step.
    // Both bars, and the picture beside them, fill with as many steps per second.
    compare(face) {
      const {uri, steps, tokens} = face, ratio = tokens / steps;
      if (this.compared === face) return;
      if (this.compared) this.bars.style.removeProperty("--played");
      this.compared = face;
      const bar = (name, count) => make("div", {style: `--share: ${count / tokens}`}, make("img", {src: uri, alt: ""}), make("span", {}, name),
        make("b", {}, `${count.toLocaleString("en")} steps`), make("i"));
      const fewer = make("p", {}, make("strong", {}, ratio > 1 ? `${ratio.toFixed(1)} times fewer steps` : "As many steps"), "for the same picture, bit for bit");
      this.bars.replaceChildren(fewer, bar("One pixel value per step", tokens), bar("superres: the same picture", steps));
    }

    clearOthers() {
      this.samples = [];
      this.place = null;  // of the true picture among the others, until the visitor has found it
      this.asks = Boolean(this.truth) && !this.painted && !this.chosen;
      this.others.classList.toggle("sr-quiz", this.asks);
      this.others.replaceChildren(...Array.from({length: this.view.others + this.asks}, () => make("span")));  // keep their room
      this.introduce();
    }

    // Show the other people; if a photo is known that has these pixels, it is among them, and the visitor looks for it.
    showOthers(faces) {
      this.samples = faces;
      const pictures = faces.map((face, at) => this.other(face.uri, `Person ${at + 1} with the same pixels`, () => this.select(this.chosen === at + 1 ? 0 : at + 1)));
      if (this.asks) {
        this.place = Math.floor(Math.random() * (faces.length + 1));
        const photo = this.other(this.truth, "The photo", () => {});
        pictures.splice(this.place, 0, photo);
        pictures.forEach((picture, at) => picture.setAttribute("aria-label", `Picture ${at + 1} of ${pictures.length}`));
      }
      this.others.replaceChildren(...pictures);
      this.introduce();
      this.select(this.chosen);
    }

    other(uri, label, action) {
      const button = this.button("", () => this.place === null ? action() : this.guess(button), {"aria-label": label, "aria-pressed": "false"});
      button.append(make("img", {src: uri, alt: ""}));
      return button;
    }

    // Say what the other people are, or ask which one is real.
    introduce(answer = "") {
      const count = this.view.side ** 2, words = ["no", "one", "two", "three", "four", "five"], number = words[this.view.others] ?? this.view.others;
      const [title, text] = answer ? [`${answer} `, `${this.score.right} of ${this.score.asked} right. The others never existed; choose one to see it large.`]
        : !this.asks ? [`${number[0].toUpperCase()}${number.slice(1)} other people with the same ${count} colours. `, `Each of these pictures reduces to exactly your ${count} colours. Choose one to see it large.`]
          : ["Which one is real? ", `One of these is the photo, reduced like them; the model drew the others. All have the same ${count} colours.`];
      this.question.replaceChildren(make("b", {}, title), text);
    }

    guess(button) {
      const pictures = [...this.others.children], right = pictures[this.place];
      this.score.asked++;
      if (button === right) this.score.right++;
      this.place = null;
      pictures.filter(picture => picture !== right).forEach((picture, at) => picture.setAttribute("aria-label", `Person ${at + 1} with the same pixels`));
      right.setAttribute("aria-label", "The photo");
      right.classList.add("sr-real");
      right.disabled = true;
      this.introduce(button === right ? "Yes, that is the photo." : "No: the photo is the one with a frame.");
    }

    // Show the likeliest face (0) or a sample large.
    select(chosen) {
      this.chosen = chosen;
      this.others.querySelectorAll("button:not(.sr-real)").forEach((button, at) => button.setAttribute("aria-pressed", String(at + 1 === chosen)));
      this.show(chosen ? this.samples[chosen - 1] : this.first);
    }
  }

  class Answer extends Drawn {
    draw(view) {
      ask("answer", view);
    }
  }

  if (!customElements.get("superres-paint")) {
    customElements.define("superres-paint", Paint);
    customElements.define("superres-answer", Answer);
  }
})();
