// What the elements of the page share.
"use strict";
window.superres = {
  make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "style") element.style.cssText = value;  // an attribute is forbidden where the policy allows no inline styles
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  },

  // Return the text of an error as a sentence.
  sentence: text => `${text[0].toUpperCase()}${text.slice(1)}.`,

  // An element that draws itself from its attribute data-view, by its method `draw`. Gradio does not replace an element
  // whose HTML is new: it changes the attributes, and removes the children that the new HTML does not have.
  Drawn: class extends HTMLElement {
    connectedCallback() {
      this.redraw();
      this.watch = new MutationObserver(changes => {
        if (!this.firstElementChild || changes.some(({type}) => type === "attributes")) this.redraw();
      });
      this.watch.observe(this, {childList: true, attributeFilter: ["data-view"]});
    }

    disconnectedCallback() {
      this.watch.disconnect();
    }

    redraw() {
      this.replaceChildren();
      this.draw(JSON.parse(this.dataset.view));
    }
  },
};
