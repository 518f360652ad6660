// Faces in photos, and where CelebA's crops of them are: what superres.tasks.face_finder and superres.tasks.aligner compute, in a
// Worker. One module for the window (`findFaces`, `hasFace`), its Worker (this module again) and node (`Finder`).
// superres/web/finder_file.py writes finder.bin: the cascade, the aligner's weights, and the numbers of both searches.
import {bilinear, extended, pixelsOf, reducedBy, resized, transformed} from "./photos.js";

/** @typedef {{x: number, y: number, side: number, turn: number, doubt: number}} Face - centre and side in pixels, degrees clockwise */

const MAGIC = 1.5 * 2 ** 52, rint = value => value + MAGIC - MAGIC;  // halves become even, as in Python
const digits = (value, count) => rint(value * 10 ** count) / 10 ** count;
const radians = degrees => degrees * (Math.PI / 180);
const cosSin = turn => [digits(Math.cos(radians(turn)), 12), digits(Math.sin(radians(turn)), 12)];
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const {fround} = Math;

// Read finder.bin: the length of a header, the header, and the low and then the high bytes of weights, all compressed.
export async function unpacked(content) {
  const stream = new Blob([content]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer()), length = new DataView(bytes.buffer).getUint32(0, true);
  const about = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length))), planes = bytes.subarray(4 + length), count = planes.length / 2;
  const weights = Float64Array.from({length: count}, (_, at) => (planes[at] | planes[count + at] << 8) << 16 >> 16);
  let at = 0;
  const next = size => weights.subarray(at, at += size);
  return {...about, layers: about.shapes.map(([inputs, outputs]) => ({inputs, outputs, weight: next(inputs * outputs), bias: next(outputs)}))};
}

// The cascade: windows of many sizes whose blocks are compared with their neighbours, as scikit-image's `Cascade` does it, in float32.
class Cascade {
  constructor({side, eps, features, stages, stumps}, {scale, step, smallest}) {
    Object.assign(this, {side, scale: fround(scale), step: fround(step), smallest, features});
    this.stages = stages.map(([first, count, threshold]) => [first, count, fround(fround(threshold) - fround(eps))]);
    this.feature = Int32Array.from(stumps, ([feature]) => feature);
    this.leaves = Float32Array.from(stumps.flatMap(([, left, right]) => [left, right]));
    this.table = Int32Array.from(stumps.flatMap(([, , , ...words]) => words));
  }

  // Return the windows [left, top, side] of a picture that are taken for a face, ordered.
  windows(picture) {
    const {width, height} = picture, sums = integral(picture), largest = Math.min(width, height), found = [];
    const sizes = Math.ceil(Math.log(largest / this.side) / Math.log(this.scale));
    for (let number = 0; number < sizes; number++) {
      const scale = fround(this.scale ** number), step = Math.trunc(fround(scale * this.step) + 0.5), side = Math.trunc(fround(this.side * scale));
      const [lowest, rightmost] = [height - side, width - side], corners = this.corners(scale, width + 1);
      for (let top = 0; top < lowest; top += step) {
        for (let left = 0; left < rightmost; left += step) {
          if (this.passes(sums, corners, top * (width + 1) + left)) found.push([left, top, side]);
        }
      }
    }
    return found.sort((one, other) => one[0] - other[0] || one[1] - other[1] || one[2] - other[2]);
  }

  // Return where the 4x4 corners of the blocks of each feature are, from a window's first sum.
  corners(scale, stride) {
    const places = new Int32Array(16 * this.features.length);
    this.features.forEach((numbers, at) => {
      const [x, y, width, height] = numbers.map(value => Math.trunc(fround(value * scale)));
      for (let corner = 0; corner < 16; corner++) places[16 * at + corner] = (y + height * (corner >> 2)) * stride + x + width * (corner & 3);
    });
    return places;
  }

  passes(sums, corners, origin) {
    const {feature, leaves, table} = this;
    for (const [first, count, threshold] of this.stages) {
      let points = 0;
      for (let stump = first; stump < first + count; stump++) {
        const at = 16 * feature[stump];
        const block = corner => fround(fround(fround(sums[origin + corners[at + corner + 5]] + sums[origin + corners[at + corner]])
          - sums[origin + corners[at + corner + 1]]) - sums[origin + corners[at + corner + 4]]);
        const middle = block(5);
        const code = (block(0) >= middle) << 7 | (block(1) >= middle) << 6 | (block(2) >= middle) << 5 | (block(6) >= middle) << 4
          | (block(10) >= middle) << 3 | (block(9) >= middle) << 2 | (block(8) >= middle) << 1 | (block(4) >= middle);
        points = fround(points + leaves[2 * stump + (table[8 * stump + (code >> 5)] >>> (code & 31) & 1 ? 0 : 1)]);
      }
      if (points < threshold) return false;
    }
    return true;
  }
}

// Return the sums of the grey values above and left of each pixel, float32 [height + 1, width + 1].
function integral({width, height, step, data}) {
  const sums = new Float32Array((width + 1) * (height + 1)), columns = new Float64Array(width), inverse = 1 / 255;
  for (let y = 0; y < height; y++) {
    let sum = 0;
    for (let x = 0; x < width; x++) {
      const at = step * (y * width + x);
      columns[x] += data[at] * inverse * 0.2125 + data[at + 1] * inverse * 0.7154 + data[at + 2] * inverse * 0.0721;
      sum += columns[x];
      sums[(y + 1) * (width + 1) + x + 1] = sum;
    }
  }
  return sums;
}

// Return the area that two squares [left, top, side] share.
const shared = (one, other) => [0, 1].map(axis => Math.max(Math.min(one[axis] + one[2], other[axis] + other[2]) - Math.max(one[axis], other[axis]), 0))
  .reduce((width, height) => width * height);

export class Finder {
  constructor(about) {
    Object.assign(this, about.finder, {aligner: new Aligner(about)});
    this.cascade = new Cascade(about.cascade, this);
  }

  /** Return the faces of a picture, from left to right. @returns {Face[]} */
  find(picture) {
    const rough = this.boxes(picture).map(box => this.squareOf(box));
    let found = rough.map(square => this.aligner.align(picture, square));
    const isUncertain = found.map(({doubt}) => doubt >= this.uncertain);
    found = found.map(({box, doubt}, at) => ({box: isUncertain[at] ? [...rough[at].slice(0, 3), 0] : box, doubt}));
    if (isUncertain.every(Boolean)) {  // the cascade has found nothing that is surely a face
      const agreed = this.aligner.search(picture);
      if (agreed.length) found = agreed;
    }
    return found.sort((one, other) => one.box[0] - other.box[0]).map(({box: [x, y, side, turn], doubt}) => ({x, y, side, turn, doubt}));
  }

  /** Whether an upright face is found in many windows of a picture. */
  has(picture, least) {
    return this.grouped(this.cascade.windows(picture)).some(([, , , count]) => count >= least);
  }

  // CelebA's square, [x, y, side, degrees], around a window of a face.
  squareOf([left, top, side, , turn]) {
    const rise = this.crop_rise * side;
    return [left + side / 2 + rise * Math.sin(radians(turn)), top + side / 2 - rise * Math.cos(radians(turn)), this.crop_size * side, turn];
  }

  // Return the mean window of each face, the clearest first: left, top, side, number of windows, and the turn at which it was found.
  boxes(picture) {
    const {width, height} = picture, scale = Math.max(1, Math.max(width, height) / this.longest);
    if (Math.min(width, height) / scale < this.smallest) return [];
    const small = scale > 1 ? gapped(picture, rint(width / scale), rint(height / scale)) : picture;
    let groups = [];
    for (const turns of this.turns) if (!groups.length) groups = turns.flatMap(turn => this.turnedGroups(small, turn));
    const most = Math.max(0, ...groups.map(([, , , count]) => count));
    let left = groups.filter(([, , , count]) => count >= this.weakest * most).sort((one, other) => other[3] - one[3]);
    const found = [];
    while (left.length) {  // keep the clearest box of a face that was found at several turns
      const [best] = left;
      found.push(best);
      left = left.filter(one => !this.covers(best, one));
    }
    return found.slice(0, this.most_faces).map(([x, y, side, ...rest]) => [x * scale, y * scale, side * scale, ...rest]);
  }

  turnedGroups(picture, turn) {
    const turned = turn ? rotated(picture, turn) : picture, [cos, sin] = [Math.cos(radians(turn)), Math.sin(radians(turn))];
    return this.grouped(this.cascade.windows(turned)).filter(([, , , count]) => count >= this.least_windows + (turn ? this.more_windows : 0))
      .map(([left, top, side, count]) => {
        const [x, y] = [left + side / 2 - turned.width / 2, top + side / 2 - turned.height / 2];
        return [x * cos - y * sin + picture.width / 2 - side / 2, x * sin + y * cos + picture.height / 2 - side / 2, side, count, turn];
      });
  }

  // Return the mean and the size of each group of windows that overlap, the largest group first.
  grouped(windows) {
    const groups = [];
    while (windows.length) {
      const near = windows.map(one => windows.map(other => {
        const area = shared(one, other);
        return area >= this.overlap * (one[2] ** 2 + other[2] ** 2 - area);
      }));
      const sizes = near.map(row => row.filter(Boolean).length), best = near[sizes.indexOf(Math.max(...sizes))];
      const group = windows.filter((_, at) => best[at]), mean = [0, 1, 2].map(axis => group.reduce((sum, one) => sum + one[axis], 0) / group.length);
      groups.push([...mean, group.length]);
      windows = windows.filter((one, at) => !best[at] && !this.covers(mean, one));
    }
    return groups;
  }

  // Whether a window shares much of a face's: a smaller one (an eye), or a larger one, is not another face.
  covers(face, one) {
    return shared(one, face) > this.covered * Math.min(one[2], face[2]) ** 2;
  }
}

// Return a reduced picture: first by a whole number, so that a large one is read once.
function gapped(picture, columns, rows) {
  const [across, down] = [picture.width / columns, picture.height / rows].map(scale => Math.max(Math.trunc(scale / 2), 1));
  return resized(reducedBy(picture, across, down), columns, rows, picture.width / across, picture.height / down);
}

// Return a picture turned by degrees anticlockwise, all of it.
function rotated(picture, turn) {
  const {width, height} = picture, angle = -radians((turn + 360) % 360);
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)].map(value => Number(value.toFixed(15)));
  const from = (x, y, [right, down]) => [cos * x + sin * y + right, -sin * x + cos * y + down];
  let offset = from(-width / 2, -height / 2, [0, 0]).map((value, axis) => value + [width, height][axis] / 2);
  const corners = [[0, 0], [width, 0], [width, height], [0, height]].map(([x, y]) => from(x, y, offset));
  const [columns, rows] = [0, 1].map(axis => {
    const places = corners.map(corner => corner[axis]);
    return Math.ceil(Math.max(...places)) - Math.floor(Math.min(...places));
  });
  offset = from(-(columns - width) / 2, -(rows - height) / 2, offset);
  return transformed(picture, columns, rows, [cos, sin, offset[0], -sin, cos, offset[1]], bilinear);
}

function greyOf({width, height, step, data}, left = 0, top = 0, right = width, bottom = height) {
  const grey = new Uint8ClampedArray((right - left) * (bottom - top));
  for (let y = top, to = 0; y < bottom; y++) {
    for (let x = left, at = step * (y * width + left); x < right; x++, at += step) grey[to++] = data[at] * 19595 + data[at + 1] * 38470 + data[at + 2] * 7471 + 0x8000 >> 16;
  }
  return {width: right - left, height: bottom - top, step: 1, data: grey};
}

// The network that moves a square until eyes and mouth are where CelebA's are. Its numbers are whole multiples of small units, and all
// sums are exact, so their order does not matter.
class Aligner {
  constructor({aligner, layers}) {
    Object.assign(this, aligner, {layers});
    const {disc_side: side} = this, places = Array.from({length: side}, (_, at) => (at + 0.5) / side - 0.5);
    this.across = places.map(at => at * this.share);
    this.down = places.map(at => at * this.share + this.rise);
    this.disc = Uint8Array.from({length: side * side}, (_, at) => (2 * (at % side) + 1 - side) ** 2 + (2 * Math.floor(at / side) + 1 - side) ** 2 < side ** 2);
    this.area = this.disc.reduce((sum, one) => sum + one);
  }

  // Return the normalized disc of a box [x, y, side, degrees] of a grey picture, in multiples of the unit.
  window({width, height, data}, [x, y, side, turn]) {
    const [cos, sin] = cosSin(turn), {across, down, disc, subpixels, disc_side: n} = this, values = new Float64Array(n * n);
    let sum = 0;
    for (let row = 0; row < n; row++) {
      for (let column = 0; column < n; column++) {
        if (!disc[row * n + column]) continue;
        const u = across[column], v = down[row];
        const at = clamp(rint((x + side * (cos * u - sin * v) - 0.5) * subpixels), 0, subpixels * (width - 1));
        const below = clamp(rint((y + side * (sin * u + cos * v) - 0.5) * subpixels), 0, subpixels * (height - 1));
        const j = Math.floor(at / subpixels), b = at - j * subpixels, i = Math.floor(below / subpixels), a = below - i * subpixels;
        const right = Math.min(j + 1, width - 1), lower = Math.min(i + 1, height - 1) * width, upper = i * width;
        const first = data[upper + j] * (subpixels - b) + data[upper + right] * b, second = data[lower + j] * (subpixels - b) + data[lower + right] * b;
        const value = rint((first * (subpixels - a) + second * a) / subpixels);
        values[row * n + column] = value;
        sum += value;
      }
    }
    const mean = rint(sum / this.area);
    let squares = 0;
    for (let at = 0; at < n * n; at++) if (disc[at]) squares += (values[at] -= mean) ** 2;
    const deviation = Math.sqrt(squares / this.area) + this.contrast * subpixels;
    return values.map(value => rint(value / deviation * this.steps));
  }

  // Return the corrections and the logit of a face of a disc.
  outputs(disc) {
    let x = disc, side = this.disc_side, channels = 1;
    const last = this.layers.length - 1;
    this.layers.forEach(({inputs, outputs, weight, bias}, number) => {
      const isConvolution = number < last - 1, half = isConvolution ? side / 2 : 1, next = new Float64Array(half * half * outputs);
      for (let row = 0; row < half; row++) {
        for (let column = 0; column < half; column++) {
          const sums = next.subarray((row * half + column) * outputs, (row * half + column + 1) * outputs);
          for (let o = 0; o < outputs; o++) sums[o] = bias[o] * this.steps;
          if (!isConvolution) add(sums, x, 0, weight, 0, inputs);
          for (let place = 0; isConvolution && place < 9; place++) {
            const i = 2 * row - 1 + Math.floor(place / 3), j = 2 * column - 1 + place % 3;
            if (i >= 0 && j >= 0 && i < side && j < side) add(sums, x, (i * side + j) * channels, weight, place * channels, channels);
          }
        }
      }
      if (number < last) for (let at = 0; at < next.length; at++) next[at] = next[at] > 0 ? rint(next[at] / this.weight_steps) : 0;
      [x, side, channels] = [next, half, outputs];
    });
    return x.map(value => value / (this.steps * this.weight_steps));
  }

  // Return the corrections of a box and their doubt, from its window and the mirror image.
  corrections(grey, box) {
    const disc = this.window(grey, box), n = this.disc_side, mirrored = disc.map((_, at) => disc[at - at % n + n - 1 - at % n]);
    const [one, other] = [this.outputs(disc), this.outputs(mirrored)];
    const change = [-1, 1, 1, -1].map((sign, at) => clamp((one[at] + sign * other[at]) / 2, -this.most_correction, this.most_correction));
    const logit = clamp((one[4] + other[4]) / 2 - this.doubtful, -30, 30);
    return {change, doubt: digits(1 / (1 + Math.exp(logit)), 6)};
  }

  moved([x, y, side, turn], change) {
    const [right, down, log, angle] = change.map((value, at) => value * this.units[at]), [cos, sin] = cosSin(turn);
    return [x + side * (cos * right - sin * down), y + side * (sin * right + cos * down), side * digits(Math.exp(log), 12), turn + angle];
  }

  corrected(grey, box) {
    let doubt = 1;
    for (let round = 0; round < this.rounds; round++) {
      const found = this.corrections(grey, box);
      box = this.moved(box, found.change);
      ({doubt} = found);
    }
    return {box, doubt};
  }

  // Return a box of a picture aligned from a rough one, and its doubt.
  align(picture, box) {
    const [x, y, side, turn] = box;
    const [left, top] = [[x, picture.width], [y, picture.height]].map(([at, n]) => Math.min(Math.max(rint(at - side), 0), n - 1));
    const [right, bottom] = [[x, left, picture.width], [y, top, picture.height]].map(([at, low, n]) => Math.min(Math.max(rint(at + side), low + 1), n));
    const {grey, scale} = this.reduced(greyOf(picture, left, top, right, bottom), side);
    const {box: [u, v, size, angle], doubt} = this.corrected(grey, [(x - left) * scale[0], (y - top) * scale[1], side * scale[0], turn]);
    return {box: [u / scale[0] + left, v / scale[1] + top, size / scale[0], angle], doubt};
  }

  // Return a grey picture, reduced so that `side` has about the pixels that the network knows, and its scales.
  reduced(grey, side) {
    const by = Math.max(1, side / this.face_side), [columns, rows] = [grey.width, grey.height].map(length => Math.max(rint(length / by), 1));
    return {grey: resized(grey, columns, rows), scale: [columns / grey.width, rows / grey.height]};
  }

  // Return boxes and doubts of faces on which several starts all over a picture agree.
  search(picture) {
    const shorter = Math.min(picture.width, picture.height), ends = [], whole = greyOf(picture);
    const smallest = Math.max(this.smallest * shorter, this.face_side / 2);
    for (let factor = 1, number = 0; number < 20 && this.largest * shorter * factor >= smallest; number++, factor *= this.next_side) {
      const side = this.largest * shorter * factor, {grey, scale: [scale]} = this.reduced(whole, side);
      const starts = this.starts(grey, side * scale).map(box => ({box, logit: this.outputs(this.window(grey, box))[4]}));
      const likely = starts.filter(({logit}) => logit > this.likely).sort((one, other) => other.logit - one.logit).slice(0, this.most_starts);
      for (const start of likely) {
        const {box: [x, y, size, turn], doubt} = this.corrected(grey, start.box);
        ends.push({box: [x / scale, y / scale, size / scale, turn], doubt});
      }
    }
    return this.agreed(ends);
  }

  // Return upright boxes all over a picture.
  starts({width, height}, side) {
    const [across, down] = [width, height].map(length => {
      const count = 2 * Math.ceil(length / (2 * this.step * side));
      return Array.from({length: count + 1}, (_, at) => at === count ? length : at * (length / count));
    });
    return down.flatMap(y => across.map(x => [x, y, side, 0]));
  }

  // Return the surest of each group of boxes that ended alike; groups that overlap are one.
  agreed(ends) {
    const found = [];
    let left = ends.sort((one, other) => one.doubt - other.doubt);
    while (left.length) {
      const [best] = left, {box: [x, y, side, turn], doubt} = best;
      const far = ({box}) => [Math.abs(box[0] - x) / side, Math.abs(box[1] - y) / side, Math.abs(Math.log(box[2] / side)), Math.abs(box[3] - turn)];
      let isAlike = left.map(one => far(one).every((value, at) => value <= this.alike[at]));
      if (isAlike.filter(Boolean).length >= this.agreeing && doubt <= this.surest && Math.abs(turn) <= this.upright) {
        found.push(best);
        isAlike = left.map((one, at) => isAlike[at] || far(one).slice(0, 2).every(value => value < 0.5 * Math.max(1, one.box[2] / side)));
      }
      left = left.filter((_, at) => !isAlike[at]);
    }
    return found;
  }
}

// Add inputs times their rows of weights to sums.
function add(sums, inputs, from, weight, row, count) {
  const outputs = sums.length;
  for (let n = 0; n < count; n++) {
    const value = inputs[from + n];
    if (value) for (let o = 0, at = (row + n) * outputs; o < outputs; o++, at++) sums[o] += value * weight[at];
  }
}

// In the window: ask the Worker, which is started, and its data loaded, when they are needed.
// windows of a face in a drawn picture, times that it is enlarged, and its repeated edge, as a share of its side
const WINDOWS = 5, ENLARGED = 3, EDGE = 0.25;
let worker, asked = 0;
const waiting = new Map();

function begin() {
  const made = new Worker(new URL(import.meta.url), {type: "module"});
  made.addEventListener("message", ({data: {number, found, error}}) => {
    const {resolve, reject} = waiting.get(number);
    waiting.delete(number);
    if (error) reject(new Error(error));
    else resolve(found);
  });
  made.addEventListener("error", () => {
    worker = null;  // the next question starts another one
    for (const {reject} of waiting.values()) reject(new Error("the finder of faces does not start here"));
    waiting.clear();
  });
  return made;
}

async function ask(kind, photo) {
  const bitmap = await createImageBitmap(photo);
  return new Promise((resolve, reject) => {
    worker ??= begin();
    waiting.set(++asked, {resolve, reject});
    worker.postMessage({number: asked, kind, bitmap}, [bitmap]);
  });
}

/** Return the faces of a photo, an ImageBitmap or canvas, from left to right. @returns {Promise<Face[]>} */
export const findFaces = photo => ask("find", photo);

/** Whether the cascade finds a face in a drawn picture, a canvas. @returns {Promise<boolean>} */
export const hasFace = canvas => ask("has", canvas);

/** Return a face as a crop [left, top, side, degrees]. @param {Face} face */
export function squareOf({x, y, side, turn}) {
  const size = rint(side);
  return [rint(x - size / 2), rint(y - size / 2), size, Number(turn.toFixed(1)) + 0];
}

// Return a drawn picture, enlarged, with edges around it: the cascade's windows are larger than the face.
function enlarged(picture) {
  const edge = Math.round(EDGE * picture.width), side = picture.width + 2 * edge, wide = extended(picture, -edge, -edge, side, side);
  return transformed(wide, ENLARGED * side, ENLARGED * side, [1 / ENLARGED, 0, 0, 0, 1 / ENLARGED, 0], bilinear);
}

const ANSWERS = {
  find: (finder, picture) => finder.find(picture),
  has: (finder, picture) => finder.has(enlarged(picture), WINDOWS),
};

async function loaded() {
  const answer = await fetch(new URL("finder.bin", import.meta.url)).catch(() => null);
  if (!answer?.ok) throw new Error("the finder of faces could not be loaded; check the connection, and try again");
  return new Finder(await unpacked(await answer.arrayBuffer()));
}

if (globalThis.WorkerGlobalScope && self instanceof WorkerGlobalScope) {
  let finder;
  self.addEventListener("message", async ({data: {number, kind, bitmap}}) => {
    try {
      finder ??= await loaded();
      self.postMessage({number, found: ANSWERS[kind](finder, pixelsOf(bitmap))});
    } catch (error) {
      self.postMessage({number, error: error.message});
    }
    bitmap.close();
  });
}
