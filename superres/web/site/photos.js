// A photo in the static page: the file is read in this browser, and its square is reduced as superres.tasks.faces does.
const {make} = superres;
const STRIP = 64;  // rows of a photo in memory at a time, beside the photo itself
const MOST = 50e6;  // pixels of a photo

// Return the pixels of a file, upright; an Error says what is wrong.
export async function readPhoto(file, least) {
  let photo;
  try {
    photo = await createImageBitmap(file);
  } catch {
    throw new Error("this browser cannot read the file as a picture. Choose a JPEG, PNG or WebP.");
  }
  const {width, height} = photo;
  if (Math.min(width, height) < least || width * height > MOST) {
    photo.close();
    throw new Error(`the picture has ${width}x${height} pixels. Choose one of at least ${least}x${least}, and at most ${MOST / 1e6} megapixels.`);
  }
  return photo;
}

// For each pixel along a side: the box that it begins in, and its weight there; the rest of `size` is in the next box.
function boxesOf(side, size) {
  return Array.from({length: side}, (_, at) => {
    const box = Math.floor(at * size / side);
    return [box, Math.min((box + 1) * side - at * size, size)];
  });
}

// Return a square of a photo reduced to `size` pixels a side, RGB rows: exact averages of boxes, truncated. All sums are whole
// numbers below 2**53. A transparent photo lies on white.
export function reduced(photo, [left, top, side], size) {
  const sums = new Float64Array(3 * size * (size + 1)), row = new Float64Array(3 * (size + 1)), boxes = boxesOf(side, size);
  const context = make("canvas", {width: side, height: STRIP}).getContext("2d", {willReadFrequently: true, colorSpace: "srgb"});
  for (let first = 0; first < side; first += STRIP) {
    const rows = Math.min(STRIP, side - first);
    context.fillStyle = "#fff";
    context.fillRect(0, 0, side, rows);
    context.drawImage(photo, left, top + first, side, rows, 0, 0, side, rows);
    const {data} = context.getImageData(0, 0, side, rows);
    for (let y = 0; y < rows; y++) {
      row.fill(0);
      boxes.forEach(([box, share], x) => {
        for (let channel = 0; channel < 3; channel++) {
          const value = data[4 * (y * side + x) + channel];
          row[3 * box + channel] += share * value;
          row[3 * (box + 1) + channel] += (size - share) * value;
        }
      });
      const [box, share] = boxes[first + y];
      for (let at = 0; at < 3 * size; at++) {
        sums[3 * size * box + at] += share * row[at];
        sums[3 * size * (box + 1) + at] += (size - share) * row[at];
      }
    }
  }
  return Uint8Array.from(sums.subarray(0, 3 * size * size), sum => Math.floor(sum / side ** 2));
}
