// A stage of the engine in a browser: its memory in the module, which it fills, and what Python computes around a decode.
// superres/pipeline/browser_export.py writes the image of the memory.

export const CHANNELS = 3;
export const INTENSITIES = 256;
const UNLIMITED = 2n ** 22n;
const PANEL = 32, GROUP = 4, POINTS = 6;  // of cpp/abi.h and kernels/convolution.h

/** Return the SHA-256 (FIPS 180-4) of bytes, as bytes. The browser's own exists only in pages from https. */
function sha256(bytes) {
  const primes = [], roots = [1 / 2, 1 / 3].map(power => n => Math.floor(n ** power % 1 * 2 ** 32) >>> 0);
  for (let n = 2; primes.length < 64; n++) if (primes.every(prime => n % prime)) primes.push(n);
  const hash = Uint32Array.from(primes.slice(0, 8), roots[0]), factors = Uint32Array.from(primes, roots[1]);
  const padded = new Uint8Array(Math.ceil((bytes.length + 9) / 64) * 64), view = new DataView(padded.buffer);
  padded.set(bytes);
  padded[bytes.length] = 128;
  view.setBigUint64(padded.length - 8, 8n * BigInt(bytes.length));
  const turned = (x, n) => x >>> n | x << 32 - n, words = new Uint32Array(64);
  for (let block = 0; block < padded.length; block += 64) {
    let [a, b, c, d, e, f, g, h] = hash;
    for (let i = 0; i < 64; i++) {
      const early = words[i - 15], late = words[i - 2];
      words[i] = i < 16 ? view.getUint32(block + 4 * i) : words[i - 16] + words[i - 7] +
        (turned(early, 7) ^ turned(early, 18) ^ early >>> 3) + (turned(late, 17) ^ turned(late, 19) ^ late >>> 10);
      const first = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + (e & f ^ ~e & g) + factors[i] + words[i];
      const second = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + (a & b ^ a & c ^ b & c);
      [h, g, f, e, d, c, b, a] = [g, f, e, d + first | 0, c, b, a, first + second | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((value, at) => { hash[at] += value; });
  }
  const out = new DataView(new ArrayBuffer(32));
  hash.forEach((word, at) => out.setUint32(4 * at, word));
  return new Uint8Array(out.buffer);
}

/** Return the first 12 hexadecimal digits of the SHA-256 of bytes. */
export const digestOf = pixels => Array.from(sha256(pixels).subarray(0, 6), byte => byte.toString(16).padStart(2, "0")).join("");

/** Return the key of a sample's noise: `image_key` of superres/tasks/faces.py. */
export function imageKey(cells, sample) {
  const bytes = new Uint8Array(cells.length + 8);
  bytes.set(cells);
  new DataView(bytes.buffer).setBigUint64(cells.length, BigInt(sample));
  return new DataView(sha256(bytes).buffer).getBigUint64(0) >> 1n;
}

/** Return the key of a stage's noise: `stage_keys` of superres/pipeline/cascade.py (Philox4x32-10). */
export function stageKey(key, stage) {
  if (!stage) return key;
  const word = 0xFFFFFFFFn;
  let [a, b, c, d] = [BigInt(stage), 0n, key & word, key >> 32n];
  for (let round = 0n; round < 10n; round++) {
    const first = a * 0xD2511F53n, second = c * 0xCD9E8D57n;
    [a, b, c, d] = [second >> 32n ^ b ^ 1n + round * 0x9E3779B9n & word, second & word,
      first >> 32n ^ d ^ round * 0xBB67AE85n & word, first & word];
  }
  return (b << 32n | a) & 2n ** 63n - 1n;
}

/** Return the bounds of the sums of cells: `Limits.bounds` of superres/decoding/limits.py, int64 [2, T + 1]. */
function boundsOf(source, {source: side, target, coarse}) {
  const factor = target / side, size = factor ** 2, length = target ** 2 * CHANNELS, half = Math.floor(size / 2);
  const [low, high] = [new Float64Array(source.length), new Float64Array(source.length)];
  const cellOf = (at, from, to) => {  // of a position in a picture of the side `from`, its cell in one of the side `to`
    const pixel = Math.floor(at / CHANNELS), row = Math.floor(pixel / from), column = pixel % from;
    return (Math.floor(row * to / from) * to + Math.floor(column * to / from)) * CHANNELS + at % CHANNELS;
  };
  source.forEach((value, at) => { low[at] = size * value - half; high[at] = low[at] + size - 1; });
  if (coarse) {
    const totals = new Float64Array(coarse ** 2 * CHANNELS), cells = (side / coarse) ** 2;
    source.forEach((value, at) => { totals[cellOf(at, side, coarse)] += value; });
    source.forEach((value, at) => {
      const total = totals[cellOf(at, side, coarse)], mean = Math.floor((total + Math.floor(cells / 2)) / cells);
      const least = mean * cells * size - Math.floor(cells * size / 2) - size * total, most = least + cells * size - 1;
      low[at] = Math.max(low[at], size * value - Math.floor(-least / cells));
      high[at] = Math.min(high[at], size * value + Math.floor(most / cells));
    });
  }
  const bounds = new BigInt64Array(2 * (length + 1));
  for (let at = 0; at < length; at++) {
    const pixel = Math.floor(at / CHANNELS), row = Math.floor(pixel / target), column = pixel % target;
    const following = size - 1 - (row % factor * factor + column % factor), cell = cellOf(at, target, side);
    bounds[at] = BigInt(low[cell] - (INTENSITIES - 1) * following);
    bounds[length + 1 + at] = BigInt(high[cell]);
  }
  bounds[length] = -UNLIMITED;
  bounds[2 * length + 1] = UNLIMITED;
  return bounds;
}

/** Return the nearest integer; of two, the even one. */
function rounded(x) {
  const low = Math.floor(x);
  return x - low < 0.5 || (x - low === 0.5 && low % 2 === 0) ? low : low + 1;
}

/** Write the int8 weights of the 36 products of a convolution, as `packed` of superres/native/weights.py, and their scales. */
function transformConvolution(taps, [outputs, inputs], factors, write) {
  const rows = new Float64Array(3 * inputs * outputs), weights = new Float32Array(inputs * outputs);
  for (let y = 0; y < POINTS; y++) {
    rows.fill(0);
    // taps [out][in][3][3]; rows [3][in][out]
    for (let o = 0; o < outputs; o++) for (let i = 0; i < inputs; i++) for (let x = 0; x < 3; x++) {
      const at = (o * inputs + i) * 9 + x;
      rows[(x * inputs + i) * outputs + o] = factors[y][0] * taps[at] + factors[y][1] * taps[at + 3] + factors[y][2] * taps[at + 6];
    }
    for (let x = 0; x < POINTS; x++) {
      const count = inputs * outputs, scale = new Float32Array(outputs);
      for (let n = 0; n < count; n++) {
        weights[n] = factors[x][0] * rows[n] + factors[x][1] * rows[count + n] + factors[x][2] * rows[2 * count + n];
        scale[n % outputs] = Math.max(scale[n % outputs], Math.abs(weights[n]));
      }
      scale.forEach((most, o) => { scale[o] = Math.max(Math.fround(most / 127), Math.fround(1e-30)); });
      const bytes = new Uint8Array(count);
      for (let n = 0; n < count; n++) {
        const o = n % outputs, i = Math.floor(n / outputs);
        const place = ((Math.floor(o / PANEL) * inputs / GROUP + Math.floor(i / GROUP)) * PANEL + o % PANEL) * GROUP + i % GROUP;
        bytes[place] = rounded(Math.fround(weights[n] / scale[o])) + 128;
      }
      write(y * POINTS + x, bytes, scale);
    }
  }
}

/** Return the place of `size` bytes in the module's memory, a multiple of 64. */
function allocated(code, size) {
  const place = code.malloc(size + 64);
  if (!place) throw new Error("There is too little memory for the model. Close other tabs, and try again.");
  return place + 63 & ~63;
}

/** The memory of a stage in the module: see superres/pipeline/browser_export.py. */
export class StageMemory {
  constructor(code, about, body, factors) {
    Object.assign(this, {code, about, length: about.target ** 2 * CHANNELS, base: allocated(code, about.memory)});
    this.numbers(Uint8Array, 0, about.memory).fill(0);
    this.numbers(Uint8Array, 0, about.bytes).set(body.subarray(0, about.bytes));
    const words = this.numbers(Uint32Array, 0, about.bytes >> 2);
    for (const link of about.links) words[link / 4] += this.base;
    const rest = new Float32Array(body.slice(about.bytes).buffer);
    let read = 0;
    const next = count => rest.subarray(read, read += count);
    about.computed.slice(0, 2).forEach((place, number) => {
      const side = number ? about.target : about.source, columns = side * CHANNELS, half = about.width / 2;
      const above = next(side * half), within = next(columns * half), signal = this.numbers(Float32Array, place, side * columns * about.width);
      for (let at = 0; at < side * columns; at++) {
        const row = Math.floor(at / columns), column = at % columns;
        signal.set(above.subarray(row * half, (row + 1) * half), 2 * at * half);
        signal.set(within.subarray(column * half, (column + 1) * half), (2 * at + 1) * half);
      }
    });
    about.convolutions.forEach((shape, number) => transformConvolution(next(9 * shape[0] * shape[1]), shape, factors, (at, bytes, scale) => {
      const [weight, units] = about.computed.slice(2 + 2 * (number * POINTS ** 2 + at));
      this.numbers(Uint8Array, weight, bytes.length).set(bytes);
      this.numbers(Float32Array, units, scale.length).set(scale);
    }));
  }

  /** Return a view of `count` numbers at a place of the image; it is valid until the module is called. */
  numbers(kind, place, count) {
    return new kind(this.code.memory.buffer, this.base + place, count);
  }

  set(name, value) {
    this.numbers(BigInt64Array, this.about.at[name], 1)[0] = BigInt(value);
  }

  /** Encode a source, and begin a sequence. */
  begin(source, key, way, rules) {
    const {at, heads, block} = this.about, size = Math.min(way.blockSize || (way.accept === "exact" ? block : heads), heads);
    this.numbers(BigInt64Array, at.source, source.length).set(Array.from(source, BigInt));
    this.code.superres_encode(this.base + at.encoder, this.base + at.encoded, 1n, 1n, this.base + at.source);
    const bound = {exact: 0, distance: way.epsilon, "top-k": way.topK}[way.accept];
    const values = {width: size, block_size: size, rule: rules.indexOf(way.accept === "top-k" ? "RANK" : "DISTANCE"), bound,
      position: -1, limit: this.length, seed: way.seed, keys: key};
    for (const [name, value] of Object.entries(values)) this.set(name, value);
    this.numbers(Uint32Array, at.sampling, 1)[0] = way.temperature ? this.base + at.sampler : 0;
    this.numbers(Float32Array, at.temperature, CHANNELS).fill(way.temperature);
    this.numbers(BigInt64Array, at.proposals, heads).fill(0n);
    this.numbers(Float32Array, at.deviation, this.length + 2).fill(0);
    this.numbers(BigInt64Array, at.bounds, 2 * (this.length + 1)).set(boundsOf(source, this.about));
    this.size = size;
    this.drafted = null;  // the draft that it goes on with, which this ends
  }

  /** Do up to `count` iterations, and return the trace of each: position, accepted tokens, proposals. */
  iterate(count) {
    const {at, heads} = this.about;
    const made = Number(this.code.superres_iterate(this.base + at.session, this.base + at.loop, BigInt(count), BigInt(this.size), this.base + at.record));
    if (this.numbers(BigInt64Array, at.not_finite, 1)[0]) throw new Error("The model's scores are not finite: the weights are damaged. Load the page again.");
    const record = Array.from(this.numbers(BigInt64Array, at.record, made * (heads + 2)), Number);
    return Array.from({length: made}, (_, n) => record.slice(n * (heads + 2), n * (heads + 2) + 2 + this.size));
  }

  /** Return p1's next choice, and the prediction heads' proposals after it. */
  pending() {
    return Array.from(this.numbers(BigInt64Array, this.about.at.proposals, this.size), Number);
  }

  /** Verify tokens from outside; the first is p1's choice, or one of a decode that is repeated. Return how many are accepted. */
  offer(tokens) {
    this.numbers(BigInt64Array, this.about.at.proposals, tokens.length).set(tokens.map(BigInt));
    this.set("block_size", tokens.length);
    const [[, accepted]] = this.iterate(1);
    this.set("block_size", this.size);
    return accepted;
  }

  /** Accept tokens within `epsilon` of p1's choice from now on. */
  accept(epsilon) {
    this.set("bound", epsilon);
  }

  /** Return the pixels of the first `count` tokens; the others are 0. */
  pixels(count) {
    const pixels = new Uint8Array(this.length), tokens = this.numbers(BigInt64Array, this.about.at.store + 8, count);
    for (let at = 0; at < count; at++) pixels[at] = Number(tokens[at]);
    return pixels;
  }
}
