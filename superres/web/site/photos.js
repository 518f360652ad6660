// A photo in the static page, and in the Worker of finder.js: the file is read in this browser, and its square is taken and reduced as
// superres.tasks.crops and superres.tasks.faces do. Pictures are {width, height, step, data}: `step` bytes a pixel, of which at
// most three are colours.
const STRIP = 64;  // rows of a photo that a canvas has at a time
const MOST = 50e6;  // pixels of a photo
const ENOUGH = 512;  // pixels of a side above which a square that is turned, or beyond the edges, is reduced before it is taken
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

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

// Give the rows of a part of a photo to `take`, some at a time: {first, rows, data}, RGBA. A transparent photo lies on white.
function eachStrip(photo, left, top, width, height, take) {
  const context = new OffscreenCanvas(width, Math.min(STRIP, height)).getContext("2d", {willReadFrequently: true, colorSpace: "srgb"});
  for (let first = 0; first < height; first += STRIP) {
    const rows = Math.min(STRIP, height - first);
    context.fillStyle = "#fff";
    context.fillRect(0, 0, width, rows);
    context.drawImage(photo, left, top + first, width, rows, 0, 0, width, rows);
    take({first, rows, data: context.getImageData(0, 0, width, rows).data});
  }
}

// Return a part of a photo as a picture.
export function pixelsOf(photo, left = 0, top = 0, width = photo.width, height = photo.height) {
  const data = new Uint8ClampedArray(4 * width * height);
  eachStrip(photo, left, top, width, height, strip => data.set(strip.data, 4 * width * strip.first));
  return {width, height, step: 4, data};
}

// For each pixel along a side: the box that it begins in, and its weight there; the rest of `size` is in the next box.
function boxesOf(side, size) {
  return Array.from({length: side}, (_, at) => {
    const box = Math.floor(at * size / side);
    return [box, Math.min((box + 1) * side - at * size, size)];
  });
}

// Return a square of a photo (left, top, side, degrees clockwise) reduced to `size` pixels a side, RGB rows: exact averages of boxes,
// truncated. All sums are whole numbers below 2**53.
export function reduced(photo, [left, top, side, turn = 0], size) {
  if (!turn && !isBeyond([left, top, side, 0], photo)) return averages(side, size, take => eachStrip(photo, left, top, side, side, take));
  const {width, data} = taken(photo, [left, top, side, turn]);
  return averages(width, size, take => take({first: 0, rows: width, data}));
}

function averages(side, size, give) {
  const sums = new Float64Array(3 * size * (size + 1)), row = new Float64Array(3 * (size + 1)), boxes = boxesOf(side, size);
  give(({first, rows, data}) => {
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
  });
  return Uint8Array.from(sums.subarray(0, 3 * size * size), sum => Math.floor(sum / side ** 2));
}

// Return cosine and sine of degrees, rounded to digits on which all mathematical libraries agree.
export const cosSin = turn => [Math.cos, Math.sin].map(of => Number(of(turn * (Math.PI / 180)).toFixed(12)));

// Whether a square reaches beyond a photo.
function isBeyond([left, top, side, turn], {width, height}) {
  const [cos, sin] = cosSin(turn), reach = (Math.abs(cos) + Math.abs(sin)) * side / 2;
  return [[left, width], [top, height]].some(([start, length]) => start + side / 2 < reach || start + side / 2 + reach > length);
}

const factorOf = size => Math.max(1, Math.floor(size / ENOUGH));

// Return the pixels of a square that is turned, or reaches beyond the photo, whose edges are repeated there: samples of the part of
// the photo that it touches, reduced by a whole number.
export function taken(photo, [left, top, size, turn]) {
  const factor = factorOf(size), side = Math.floor(size / factor), scale = size / factor / side;
  const [cos, sin] = cosSin(turn), reach = Math.ceil((Math.abs(cos) + Math.abs(sin)) * size / 2) + 4 * factor;
  const centre = [left + size / 2, top + size / 2];  // from left and top
  const first = centre.map(at => Math.max(Math.floor(at) - reach, 0));
  const last = centre.map((at, axis) => clamp(Math.ceil(at) + reach, 1, [photo.width, photo.height][axis]));
  const part = reducedBy(pixelsOf(photo, ...first, last[0] - first[0], last[1] - first[1]), factor, factor);
  const [x, y] = centre.map((at, axis) => (at - first[axis]) / factor), margin = Math.ceil(reach / factor) + 2;
  const [column, row] = [x, y].map(at => Math.floor(at) - margin);
  const wide = extended(part, column, row, Math.ceil(x) + margin - column, Math.ceil(y) + margin - row);
  const [c, s] = [cos * scale, sin * scale];
  return transformed(wide, side, side, [c, -s, x - column - (c - s) * side / 2, s, c, y - row - (s + c) * side / 2], bicubic);
}

// Return a window of a picture, whose edges are repeated beyond it.
export function extended({width, height, step, data}, left, top, across, down) {
  const wide = new Uint8ClampedArray(step * across * down);
  for (let y = 0; y < down; y++) {
    const row = clamp(top + y, 0, height - 1) * width;
    for (let x = 0; x < across; x++) {
      const from = step * (row + clamp(left + x, 0, width - 1)), to = step * (y * across + x);
      for (let channel = 0; channel < step; channel++) wide[to + channel] = data[from + channel];
    }
  }
  return {width: across, height: down, step, data: wide};
}

// What follows computes what Pillow 12 computes, bit by bit.

// Return a picture whose pixels are the rounded means of boxes of `across` x `down` pixels; those at the right and lower edge may be smaller.
export function reducedBy(picture, across, down) {
  const {width, height, step, data} = picture;
  if (across === 1 && down === 1) return picture;
  const [columns, rows] = [Math.ceil(width / across), Math.ceil(height / down)], small = new Uint8ClampedArray(step * columns * rows);
  for (let y = 0; y < rows; y++) {
    const bottom = Math.min((y + 1) * down, height);
    for (let x = 0; x < columns; x++) {
      const left = x * across, right = Math.min(left + across, width), area = (right - left) * (bottom - y * down);
      const share = Math.trunc(Math.fround(2 ** 32 / Math.fround(256 * area)));
      let [a, b, c] = [area >> 1, area >> 1, area >> 1];
      for (let row = y * down; row < bottom; row++) {
        for (let at = step * (row * width + left), end = step * (row * width + right); at < end; at += step) {
          a += data[at];
          if (step > 1) {
            b += data[at + 1];
            c += data[at + 2];
          }
        }
      }
      const to = step * (y * columns + x);
      small[to] = Math.floor(a * share / 2 ** 24);
      if (step > 1) {
        small[to + 1] = Math.floor(b * share / 2 ** 24);
        small[to + 2] = Math.floor(c * share / 2 ** 24);
      }
    }
  }
  return {width: columns, height: rows, step, data: small};
}

const BITS = 22;  // of the weights of `resized`

// Return for each pixel of a reduced or enlarged side which pixels it is the mean of, and their weights.
function weightsOf(length, end, size) {
  const scale = end / size, filter = Math.max(scale, 1), support = 0.5 * filter, by = 1 / filter;
  return Array.from({length: size}, (_, at) => {
    const centre = (at + 0.5) * scale, first = Math.max(Math.trunc(centre - support + 0.5), 0), last = Math.min(Math.trunc(centre + support + 0.5), length);
    const weights = Array.from({length: last - first}, (_, n) => {
      const place = (n + first - centre + 0.5) * by;
      return place > -0.5 && place <= 0.5 ? 1 : 0;
    });
    const sum = weights.reduce((one, other) => one + other, 0);
    return [first, weights.map(weight => Math.trunc(0.5 + (sum ? weight / sum : weight) * 2 ** BITS))];
  });
}

// Return a picture in another size, by means of boxes, across and then down; `right` and `bottom` are its ends, which may be within a pixel.
export function resized({width, height, step, data}, columns, rows, right = width, bottom = height) {
  const channels = Math.min(step, 3), half = 1 << BITS - 1;
  const narrow = new Uint8ClampedArray(step * columns * height), small = new Uint8ClampedArray(step * columns * rows);
  weightsOf(width, right, columns).forEach(([first, weights], x) => {
    for (let y = 0; y < height; y++) {
      for (let channel = 0; channel < channels; channel++) {
        let sum = half;
        for (let n = 0, at = step * (y * width + first) + channel; n < weights.length; n++, at += step) sum += weights[n] * data[at];
        narrow[step * (y * columns + x) + channel] = sum >> BITS;
      }
    }
  });
  weightsOf(height, bottom, rows).forEach(([first, weights], y) => {
    for (let at = 0; at < step * columns; at++) {
      let sum = half;
      for (let n = 0; n < weights.length; n++) sum += weights[n] * narrow[step * columns * (first + n) + at];
      small[step * columns * y + at] = sum >> BITS;
    }
  });
  return {width: columns, height: rows, step, data: small};
}

// Return samples of a picture, black outside it, at places that a matrix [a, b, c, d, e, f] gives: a x + b y + c, d x + e y + f.
export function transformed({width, height, step, data}, columns, rows, [a, b, c, d, e, f], sample) {
  const made = new Uint8ClampedArray(step * columns * rows), channels = Math.min(step, 3);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const x = a * (column + 0.5) + b * (row + 0.5) + c, y = d * (column + 0.5) + e * (row + 0.5) + f, at = step * (row * columns + column);
      if (x < 0 || y < 0 || x >= width || y >= height) continue;
      for (let channel = 0; channel < channels; channel++) {
        made[at + channel] = Math.floor(clamp(sample(data, x - 0.5, y - 0.5, width, height, step, channel), 0, 255));
      }
    }
  }
  return {width: columns, height: rows, step, data: made};
}

export function bilinear(data, x, y, width, height, step, channel) {
  const left = Math.floor(x), top = Math.floor(y), [across, down] = [x - left, y - top];
  const [one, other] = [clamp(left, 0, width - 1), clamp(left + 1, 0, width - 1)].map(at => step * at + channel);
  const along = row => {
    const first = data[step * width * row + one];
    return first + (data[step * width * row + other] - first) * across;
  };
  const upper = along(clamp(top, 0, height - 1)), lower = top + 1 < height ? along(top + 1) : upper;
  return upper + (lower - upper) * down;
}

const cubic = (a, b, c, d, at) => b + at * (-a + c + at * (2 * (a - b) + c - d + at * (-a + b - c + d)));

export function bicubic(data, x, y, width, height, step, channel) {
  const left = Math.floor(x), top = Math.floor(y), [across, down] = [x - left, y - top];
  const [i, j, k, l] = [-1, 0, 1, 2].map(by => step * clamp(left + by, 0, width - 1) + channel);
  const along = row => {
    const at = step * width * row;
    return cubic(data[at + i], data[at + j], data[at + k], data[at + l], across);
  };
  const first = along(clamp(top - 1, 0, height - 1)), second = top < height && top >= 0 ? along(top) : first;
  const third = top + 1 < height ? along(top + 1) : second, fourth = top + 2 < height ? along(top + 2) : third;
  return cubic(first, second, third, fourth, down);
}
