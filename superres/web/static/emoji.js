// A face's pixels as a grid of coloured emoji squares, to paste into any chat, and back; and the face of the day.
"use strict";
(() => {
  // Each square stands for a tone of faces: of 14 faces that are copied and pasted, the finder finds 14, and 6 with the squares' own colours.
  const SQUARES = {"⬛": [24, 19, 16], "🟫": [92, 60, 44], "🟥": [146, 80, 58], "🟧": [190, 132, 100], "🟨": [236, 186, 148], "⬜": [232, 232, 228],
    "🟩": [84, 108, 72], "🟦": [110, 126, 150], "🟪": [104, 94, 98]};
  const NAMES = Object.keys(SQUARES), COUNTS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"];
  // A grid, and what chats and mails put between its squares: spaces, marks of quotes, and characters without a width.
  const GRID = /(?:[⬛⬜🟥🟦🟧🟨🟩🟪🟫][\s>|\u200b-\u200d\u2060\ufe0e\ufe0f\ufeff]*)+/gu, SQUARE = /[⬛⬜🟥🟦🟧🟨🟩🟪🟫]/gu;

  // Return a colour in CIE L*a*b* (D65).
  function labOf(colour) {
    const [r, g, b] = colour.map(value => value <= 10.31475 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    const [x, y, z] = [(0.412453 * r + 0.35758 * g + 0.180423 * b) / 0.95047, 0.212671 * r + 0.71516 * g + 0.072169 * b, (0.019334 * r + 0.119193 * g + 0.950227 * b) / 1.08883]
      .map(share => share > 0.008856 ? Math.cbrt(share) : 7.787 * share + 16 / 116);
    return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
  }

  const LABS = Object.values(SQUARES).map(labOf);

  // Return the number of the tone nearest to a colour.
  function nearest(colour) {
    const own = labOf(colour), far = LABS.map(lab => lab.reduce((sum, value, at) => sum + (value - own[at]) ** 2, 0));
    return far.indexOf(Math.min(...far));
  }

  // Return the sums of the values around each one, weighted by 16 in all.
  function around(values, side) {
    const inside = place => Math.min(Math.max(place, 0), side - 1), weights = [1, 2, 1];
    return Array.from(values, (_, at) => {
      const pixel = Math.floor(at / 3), [x, y] = [pixel % side, Math.floor(pixel / side)];
      return weights.flatMap((tall, row) => weights.map((wide, column) =>
        tall * wide * values[3 * (inside(y + row - 1) * side + inside(x + column - 1)) + at % 3])).reduce((sum, one) => sum + one);
    });
  }

  // Twice the contrast of neighbours lets eyes and mouths outlive the nine tones (dithering takes more than it gives); what is
  // pasted is softened again.
  function contrasted(values, side) {
    const sums = around(values, side);
    return Array.from(values, (value, at) => Math.min(Math.max(2 * value - sums[at] / 16, 0), 255));
  }

  function softened(values, side) {
    const sums = around(values, side);
    return Uint8Array.from(values, (value, at) => Math.round((11 * value + 5 * sums[at] / 16) / 16));
  }

  // Return the squares of pixels as lines of text.
  function toEmoji(values, side) {
    const strong = contrasted(values, side), rows = Array.from({length: side}, (_, row) => row * side);
    return rows.map(begin => rows.map((_, column) => NAMES[nearest(strong.slice(3 * (begin + column), 3 * (begin + column) + 3))]).join("")).join("\n");
  }

  // Return the pixels of the grid in a text, with a note of what is lost; without pixels, the note says why. A text without squares is none: null.
  function fromEmoji(text, side) {
    const grids = (text.match(GRID) ?? []).map(grid => grid.split(/[\r\n\u2028\u2029]+/).map(line => line.match(SQUARE) ?? []).filter(row => row.length));
    if (!grids.length) return null;
    for (const rows of grids) {
      const all = rows.flat(), begin = rows.findIndex((_, at) => at + side <= rows.length && rows.slice(at, at + side).every(row => row.length === side));
      const squares = begin >= 0 ? rows.slice(begin, begin + side).flat() : rows.length === 1 && all.length === side ** 2 ? all : null;
      if (!squares) continue;
      const used = new Set(squares).size;
      return {values: softened(squares.flatMap(square => SQUARES[square]), side),
        note: `${side}x${side} squares in ${COUNTS[used]} tone${used === 1 ? "" : "s"}: finer shades are lost, so the face resembles the one that was copied, and is another.`};
    }
    const rows = grids.reduce((most, one) => one.length > most.length ? one : most), lengths = rows.map(row => row.length);
    const [least, most] = [Math.min(...lengths), Math.max(...lengths)];
    return {values: null, note: `The text has ${rows.length} row${rows.length === 1 ? "" : "s"} of ${least === most ? least : `${least} to ${most}`} squares; ` +
      `copy ${side} rows of ${side} squares, and paste them again.`};
  }

  // Return a function whose calls return whole numbers below 2 ** 32 that depend on a text alone (FNV-1a, and the end of MurmurHash3).
  function numbersOf(text) {
    let state = 0x811c9dc5;
    for (const letter of text) state = Math.imul(state ^ letter.codePointAt(0), 0x01000193);
    return () => {
      state = state + 0x9e3779b9 | 0;
      let mixed = Math.imul(state ^ state >>> 16, 0x85ebca6b);
      mixed = Math.imul(mixed ^ mixed >>> 13, 0xc2b2ae35);
      return (mixed ^ mixed >>> 16) >>> 0;
    };
  }

  // Return the face of the day (UTC), two people mixed and their hue turned a little, of whole numbers: the same in every browser.
  function today(people, side, now = new Date()) {
    const date = now.toISOString().slice(0, 10), next = numbersOf(date), first = next() % people.length;
    const second = (first + 1 + next() % Math.max(people.length - 1, 1)) % people.length, share = 80 + next() % 97, turn = next() % 41 - 20, isMirrored = next() % 2;
    const values = new Uint8Array(3 * side ** 2);
    for (let at = 0; at < side ** 2; at++) {
      const across = isMirrored ? at - 2 * (at % side) + side - 1 : at;
      const mixed = [0, 1, 2].map(channel => share * people[first][3 * at + channel] + (256 - share) * people[second][3 * across + channel]);
      mixed.forEach((value, channel) => {  // a turn about the axis of greys, by up to 8 degrees
        const turned = 256 * value + turn * (mixed[(channel + 2) % 3] - mixed[(channel + 1) % 3]);
        values[3 * at + channel] = Math.min(Math.max(Math.floor((turned + 32768) / 65536), 0), 255);
      });
    }
    return {date, values};
  }

  Object.assign(superres, {emoji: {toEmoji, fromEmoji}, today});
})();
