// Finishing pictures after decoding, as superres/pipeline/finish.py does: the mean of several, then an unsharp mask, both
// projected onto the pictures whose cells have exactly the sums of the input's. Whole numbers below 2 ** 53, so every bit is Python's.
import {CHANNELS, imageKey} from "./stage.js";

export const DRAWN = {mean: 2, sharp: 3};  // pictures that are averaged
const TEMPERATURE = 0.7;  // of the samples that are averaged
const GAUSS = [1, 18, 221, 991, 1634, 991, 221, 18, 1];  // of standard deviation 1 pixel
const UNIT = GAUSS.reduce((sum, weight) => sum + weight) ** 2;  // of the mask, 2 ** 24

/** Return a picture with its columns in the reverse order. */
export function mirrored(pixels) {
  const side = Math.sqrt(pixels.length / CHANNELS);
  return pixels.map((_, at) => {
    const pixel = Math.floor(at / CHANNELS), column = pixel % side;
    return pixels[(pixel - column + side - 1 - column) * CHANNELS + at % CHANNELS];
  });
}

/** Return what is drawn to be averaged: of each picture its input, the key of its noise, and how its way differs. */
export function drawingsOf(cells, {finish, sample}) {
  if (finish === "mean") return [false, true].map(isMirrored => [isMirrored ? mirrored(cells) : cells, imageKey(cells, sample), {isMirrored}]);
  return Array.from({length: DRAWN[finish]}, (_, number) => [cells, imageKey(cells, number + 1), {temperature: TEMPERATURE}]);
}

/** Return the mean of the pictures of `drawingsOf`, projected onto the cells of the input. */
export function meanOf(pictures, cells, finish) {
  const own = pictures.map((picture, number) => finish === "mean" && number ? mirrored(picture) : picture);
  return projected(Float64Array.from(own[0], (_, at) => own.reduce((sum, one) => sum + one[at], 0)), own.length, cells);
}

/** Return a picture under an unsharp mask of amount 1, projected onto the cells of the input. */
export function sharpened(pixels, cells) {
  const blurry = blurred(blurred(Float64Array.from(pixels), true), false);
  return projected(blurry.map((value, at) => 2 * UNIT * pixels[at] - value), UNIT, cells);
}

/** Return sums weighted by `GAUSS` down the columns or along the rows of a picture, at whose ends it is reflected. */
function blurred(values, isDown) {
  const side = Math.sqrt(values.length / CHANNELS), margin = (GAUSS.length - 1) / 2, period = 2 * side;
  const reflected = place => { const one = (place % period + period) % period; return one < side ? one : period - 1 - one; };
  return values.map((_, at) => {
    const pixel = Math.floor(at / CHANNELS), row = Math.floor(pixel / side), column = pixel % side, channel = at % CHANNELS;
    return GAUSS.reduce((sum, weight, number) => {
      const place = reflected((isDown ? row : column) + number - margin);
      return sum + weight * values[(isDown ? place * side + column : row * side + place) * CHANNELS + channel];
    }, 0);
  });
}

/** Return the picture nearest to `values`, in units of 1 / `unit`, whose cells have the sums of the input's: `projected` of superres/tasks/consistency.py. */
function projected(values, unit, cells) {
  const side = Math.sqrt(values.length / CHANNELS), small = Math.sqrt(cells.length / CHANNELS), factor = side / small, most = 255 * unit;
  const pixels = new Uint8Array(values.length);
  cells.forEach((mean, cell) => {
    const pixel = Math.floor(cell / CHANNELS), row = Math.floor(pixel / small), column = pixel % small, sum = mean * factor ** 2;
    const places = Array.from({length: factor ** 2}, (_, number) =>
      ((row * factor + Math.floor(number / factor)) * side + column * factor + number % factor) * CHANNELS + cell % CHANNELS);
    const largest = places.reduce((found, at) => Math.max(found, Math.abs(values[at])), 0);
    const moved = (at, shift) => Math.min(Math.max(values[at] + shift, 0), most);
    let low = -most - largest, high = most + largest;  // of the largest shift with which the sum is at most that of the cell
    while (low < high) {
      const middle = low + Math.floor((high - low + 1) / 2);
      if (places.reduce((total, at) => total + moved(at, middle), 0) <= sum * unit) low = middle;
      else high = middle - 1;
    }
    const parts = places.map(at => {
      const value = moved(at, low), whole = Math.floor(value / unit);
      pixels[at] = whole;
      return {at, order: whole === 255 ? unit : whole * unit - value};  // the largest rests are rounded up
    });
    const left = sum - parts.reduce((total, {at}) => total + pixels[at], 0);
    for (const {at} of parts.sort((one, other) => one.order - other.order).slice(0, left)) pixels[at]++;
  });
  return pixels;
}
