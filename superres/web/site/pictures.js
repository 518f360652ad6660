// Pictures of the static page: canvases, PNG files with the mark that a model drew them, and the card of superres/web/card.py.

const {make} = superres;
const SIZE = [1200, 630], FACE = 384, INPUT = 224, OTHER = 186, GAP = 12, ARROW = 88, TOP = 124;  // of a card, in pixels
const [BACKGROUND, TEXT, QUIET, ACCENT] = ["#101418", "#f4f5f7", "#a9b1bd", "#ff9f43"];

export function canvasOf(pixels, side) {
  const canvas = make("canvas", {width: side, height: side}), image = new ImageData(side, side);
  for (let at = 0; at < side * side; at++) image.data.set([...pixels.subarray(3 * at, 3 * at + 3), 255], 4 * at);
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

// Return a canvas of another size; `smooth` interpolates.
export function enlarged(canvas, side, smooth = false) {
  const larger = make("canvas", {width: side, height: side}), context = larger.getContext("2d");
  Object.assign(context, {imageSmoothingEnabled: smooth, imageSmoothingQuality: "high"});
  context.drawImage(canvas, 0, 0, side, side);
  return larger;
}

// Return an unfinished picture over the one that it is drawn from; a pixel has its colours once all three are decoded.
export function unfinished({pixels, side, tokens, isMirrored}, below) {
  const canvas = enlarged(below, side), context = canvas.getContext("2d"), image = context.getImageData(0, 0, side, side);
  for (let at = 0; at < Math.floor(tokens / 3); at++) {
    const place = isMirrored ? at - at % side + side - 1 - at % side : at;  // shown as the input is
    image.data.set(pixels.subarray(3 * at, 3 * at + 3), 4 * place);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// Return the card of a face, with its input, other faces and a link; `isFace` says whether a face can be found in it.
export function card(source, face, others, link, isFace) {
  const canvas = make("canvas", {width: SIZE[0], height: SIZE[1]}), context = canvas.getContext("2d");
  const write = (text, x, y, size, colour) => {
    Object.assign(context, {fillStyle: colour, font: `${size}px system-ui, sans-serif`, textAlign: "center", textBaseline: "middle"});
    context.fillText(text, x, y, SIZE[0] - 80);
  };
  const place = (picture, x, y, side, smooth = true) => context.drawImage(enlarged(picture, side, smooth), x, y);
  const left = (SIZE[0] - INPUT - ARROW - FACE - 2 * (OTHER + GAP) - GAP) / 2, middle = TOP + FACE / 2, right = left + INPUT + ARROW;
  context.fillStyle = BACKGROUND;
  context.fillRect(0, 0, ...SIZE);
  write(`${source.width ** 2} colours in, ${isFace ? "people who never existed" : "and what a model makes of them"}`, SIZE[0] / 2, 62, 50, TEXT);
  place(source, left, middle - INPUT / 2, INPUT, false);
  write("\u2192", left + INPUT + ARROW / 2, middle, 72, ACCENT);
  place(face, right, TOP, FACE);
  others.forEach((other, at) => place(other, right + FACE + 2 * GAP + at % 2 * (OTHER + GAP), TOP + Math.floor(at / 2) * (OTHER + GAP), OTHER));
  write(`${source.width}x${source.width} pixels`, left + INPUT / 2, middle + INPUT / 2 + 26, 24, QUIET);
  write(`${face.width}x${face.width}, drawn by a model`, right + FACE / 2, TOP + FACE + 26, 24, QUIET);
  write(link, SIZE[0] / 2, 594, 28, ACCENT);
  return canvas;
}
