// <superres-viewer data-view="..."> shows a picture large, and a divider that is dragged on it uncovers another picture.
// With several pictures, a sheet below chooses one; <superres-kept> lists those that were kept. superres/web/upscale_tab.py
// writes the data. All drawing happens here: nothing asks the server.
"use strict";
(() => {
  const {make, Drawn} = superres;
  const FIRST = 50;  // first place of the divider in percent
  let viewers = 0;

  const download = face => make("a", {class: "sr-download", download: face.file, href: face.uri}, "Download PNG");

  class Viewer extends Drawn {
    draw(view) {
      const {faces} = this.view = view;
      this.after = make("img", {class: "sr-after"});
      this.before = make("img", {class: "sr-before"});
      this.names = [make("span", {class: "sr-name sr-left"}), make("span", {class: "sr-name sr-right"})];
      this.divider = make("input", {type: "range", min: 0, max: 100, "aria-label": "Divider between the two pictures"});
      this.divider.addEventListener("input", () => this.move(this.divider.valueAsNumber));
      this.frame = make("div", {class: "sr-split"}, this.after, this.before, ...this.names, this.divider);
      this.frame.addEventListener("pointerdown", event => {
        if (event.button > 0) return;
        event.preventDefault();  // neither selects nor drags the image itself
        this.divider.focus({focusVisible: false});
        this.frame.setPointerCapture(event.pointerId);
        this.follow(event);
      });
      this.frame.addEventListener("pointermove", event => {
        if (this.frame.hasPointerCapture(event.pointerId)) this.follow(event);
      });
      this.select = make("select", {});
      this.select.addEventListener("change", () => this.uncover(Number(this.select.value)));
      this.caption = make("p", {class: "sr-chosen"});
      this.actions = make("span", {class: "sr-links"});
      this.append(this.frame,
        make("div", {class: "sr-under"}, make("label", {}, "Left side ", this.select), this.actions), this.caption);
      if (faces.length > 1) this.append(this.sheet());
      this.divider.value = FIRST;
      this.choose(0);
    }

    sheet() {
      const group = `sr-sheet-${++viewers}`;
      const choices = this.view.faces.map((face, at) => {
        const radio = make("input", {type: "radio", name: group, value: at});
        radio.checked = at === 0;
        radio.addEventListener("change", () => this.choose(at));
        return make("label", {class: "sr-choice"}, radio, make("img", {src: face.uri, alt: face.name}));
      });
      return make("fieldset", {class: "sr-sheet"}, make("legend", {}, "Choose a sample, the likeliest first"), ...choices);
    }

    // Show the face with this index; the left side keeps its kind of picture.
    choose(index) {
      const face = this.view.faces[index], kept = Math.max(this.select.selectedIndex, 0);
      this.others = [...this.view.before, ...face.before];
      this.select.replaceChildren(...this.others.map(({name}, at) => make("option", {value: at}, name)));
      this.select.value = kept;
      this.uncover(kept);
      this.after.src = face.uri;
      this.after.alt = face.name;
      this.names[1].textContent = face.name;
      this.caption.textContent = face.note;
      this.actions.replaceChildren(download(face));
      if (this.view.faces.length > 1) {
        const keep = make("button", {type: "button", class: "sr-keep"}, "Keep this face");
        keep.addEventListener("click", () => document.dispatchEvent(new CustomEvent("superres-keep", {detail: face})));
        this.actions.append(keep);
      }
    }

    // Show the picture with this index on the left side.
    uncover(index) {
      const {name, uri} = this.others[index];
      this.before.src = uri;
      this.before.alt = `${name}, left of the divider`;
      this.names[0].textContent = name;
      this.move(this.divider.valueAsNumber);
    }

    follow(event) {
      const {left, width} = this.frame.getBoundingClientRect();
      this.move(Math.min(Math.max(Math.round(100 * (event.clientX - left) / width), 0), 100));
    }

    move(percent) {
      this.divider.value = percent;
      this.divider.setAttribute("aria-valuetext", `${percent} % ${this.names[0].textContent}`);
      this.frame.style.setProperty("--split", `${percent}%`);
    }
  }

  // The faces that were kept, until the page is left.
  class Kept extends HTMLElement {
    connectedCallback() {
      this.heading = make("h3", {}, "Kept faces");
      this.list = make("ul");
      this.hidden = true;
      this.replaceChildren(this.heading, this.list);
      this.keep = event => this.add(event.detail);
      document.addEventListener("superres-keep", this.keep);
    }

    disconnectedCallback() {
      document.removeEventListener("superres-keep", this.keep);
    }

    add(face) {
      if ([...this.list.querySelectorAll("img")].some(image => image.src === face.uri)) return;
      const remove = make("button", {type: "button", "aria-label": `Remove ${face.kept}`}, "Remove");
      const item = make("li", {}, make("img", {src: face.uri, alt: face.kept}), make("span", {}, face.kept),
        download(face), remove);
      remove.addEventListener("click", () => {
        item.remove();
        this.hidden = !this.list.children.length;
      });
      this.list.append(item);
      this.hidden = false;
    }
  }

  for (const [name, element] of [["superres-viewer", Viewer], ["superres-kept", Kept]]) {
    if (!customElements.get(name)) customElements.define(name, element);
  }
})();
