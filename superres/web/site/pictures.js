// Pictures of the static page: canvases, PNG files with the mark that a model drew them, and the card of superres/web/card.py.
const {make} = superres;
const HEADER = 33;  // bytes of a PNG file before its second chunk
const SIZE = [1200, 630], FACE = 384, INPUT = 224, OTHER = 186, GAP = 12, ARROW = 88, TOP = 124;  // of a card, in pixels
const [BACKGROUND, TEXT, QUIET, ACCENT] = ["#101418", "#f4f5f7", "#a9b1bd", "#ff9f43"];
export const NOTE = "invented detail, not a likeness; never use it to identify anyone";

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

// Return a chunk of a PNG file: its length, name, data and check sum.
function chunk(name, data) {
  const bytes = new Uint8Array(12 + data.length), view = new DataView(bytes.buffer);
  view.setUint32(0, data.length);
  bytes.set(new TextEncoder().encode(name), 4);
  bytes.set(data, 8);
  let sum = -1;
  for (const byte of bytes.subarray(4, -4)) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit++) sum = sum >>> 1 ^ (sum & 1 && 0xedb88320);
  }
  view.setUint32(bytes.length - 4, ~sum);
  return bytes;
}

// Return a picture that a model drew as a PNG in a data URI: with the XMP packet that marks it, and how it was made.
export function markedUri(canvas, xmp, record) {
  const bytes = Uint8Array.from(atob(canvas.toDataURL().split(",")[1]), letter => letter.charCodeAt(0));
  const encode = text => new TextEncoder().encode(text);
  const parts = [bytes.subarray(0, HEADER), chunk("tEXt", encode("Software\0superres")),
    chunk("tEXt", encode(`superres\0${JSON.stringify({...record, note: NOTE})}`)),
    chunk("iTXt", encode(`XML:com.adobe.xmp\0\0\0\0\0${xmp}`)), bytes.subarray(HEADER)];
  return `data:image/png;base64,${btoa(parts.map(part => Array.from(part, byte => String.fromCharCode(byte)).join("")).join(""))}`;
}

// Return the card of a face, with its input, other faces and a link.
export function card(source, face, others, link) {
  const canvas = make("canvas", {width: SIZE[0], height: SIZE[1]}), context = canvas.getContext("2d");
  const write = (text, x, y, size, colour) => {
    Object.assign(context, {fillStyle: colour, font: `${size}px system-ui, sans-serif`, textAlign: "center", textBaseline: "middle"});
    context.fillText(text, x, y, SIZE[0] - 80);
  };
  const place = (picture, x, y, side, smooth = true) => context.drawImage(enlarged(picture, side, smooth), x, y);
  const left = (SIZE[0] - INPUT - ARROW - FACE - 2 * (OTHER + GAP) - GAP) / 2, middle = TOP + FACE / 2, right = left + INPUT + ARROW;
  context.fillStyle = BACKGROUND;
  context.fillRect(0, 0, ...SIZE);
  write(`${source.width ** 2} colours in, people who never existed`, SIZE[0] / 2, 62, 50, TEXT);
  place(source, left, middle - INPUT / 2, INPUT, false);
  write("\u2192", left + INPUT + ARROW / 2, middle, 72, ACCENT);
  place(face, right, TOP, FACE);
  others.forEach((other, at) => place(other, right + FACE + 2 * GAP + at % 2 * (OTHER + GAP), TOP + Math.floor(at / 2) * (OTHER + GAP), OTHER));
  write(`${source.width}x${source.width} pixels`, left + INPUT / 2, middle + INPUT / 2 + 26, 24, QUIET);
  write(`${face.width}x${face.width}, drawn by a model`, right + FACE / 2, TOP + FACE + 26, 24, QUIET);
  write(link, SIZE[0] / 2, 594, 28, ACCENT);
  return canvas;
}
