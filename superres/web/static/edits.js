// superres.edits: what the chips of the paint box do to the pixels of a face. All faces are framed alike, as in CelebA, so a
// shape knows where eyes, mouth and hair are; it covers a share of each pixel, as in a picture that is reduced.
// superres.edits.apply("Beard", values, side, people) has the new pixels; `people` are the pixels of faces that a model drew.
"use strict";
(() => {
  const POINTS = 8;  // of a pixel's side, at which it is tested whether a shape covers it
  const COLOURS = 0.5;  // least number of colours of a picture, over the number of its pixels
  const HUE = 0.12;  // largest turn of the hue of a surprise, as a share of red, green and blue that moves to the next one
  const SHADES = [34, 28, 30], RED = [190, 28, 34], BROWN = [58, 38, 28], GREEN = [0.86, 1.05, 0.68], GREY = 190, AGED = [225, 195, 185];

  const ellipse = (x, y, width, height) => (left, top) => ((left - x) / width) ** 2 + ((top - y) / height) ** 2 <= 1;
  const within = (left, right, top, bottom) => (x, y) => x >= left && x < right && y >= top && y < bottom;
  const all = (...shapes) => (x, y) => shapes.every(shape => shape(x, y));
  const any = (...shapes) => (x, y) => shapes.some(shape => shape(x, y));
  const not = shape => (x, y) => !shape(x, y);

  const FACE = ellipse(0.5, 0.6, 0.3, 0.42), CHEEKS = ellipse(0.5, 0.6, 0.2, 0.15), FOREHEAD = ellipse(0.5, 0.1, 0.2, 0.12);
  const HAIR = all(ellipse(0.5, 0.5, 0.5, 0.62), not(FACE)), LIPS = ellipse(0.5, 0.79, 0.1, 0.045);
  const LENSES = any(ellipse(0.36, 0.545, 0.115, 0.075), ellipse(0.64, 0.545, 0.115, 0.075), within(0.24, 0.76, 0.49, 0.52));
  const WHISKERS = any(within(0, 1, 0.72, 1), all(within(0, 1, 0.6, 1), not(ellipse(0.5, 0.6, 0.22, 0.3))));
  const BEARD = all(ellipse(0.5, 0.6, 0.31, 0.42), WHISKERS, not(LIPS));
  const CROWN = all(ellipse(0.5, 0.36, 0.36, 0.42), within(0, 1, 0, 0.26)), VISOR = ellipse(0.5, 0.26, 0.33, 0.06);

  const light = ([red, green, blue]) => 0.299 * red + 0.587 * green + 0.114 * blue;
  const blend = (one, other, share) => one.map((value, at) => value + share * (other[at] - value));
  const times = (colour, factor) => colour.map(value => value * factor);
  const colourAt = (values, at) => [...values.subarray(3 * at, 3 * at + 3)];
  const sumOf = numbers => numbers.reduce((sum, number) => sum + number, 0);
  const pixels = colours => Uint8Array.from(colours.flat().map(value => Math.min(Math.max(Math.round(value), 0), 255)));
  // Return `colour`, darker where what is `below` is darker than `usual`, by a share of the difference.
  const shaded = (colour, below, usual, share) => times(colour, 1 + share * (light(below) / Math.max(light(usual), 1) - 1));

  // Return the share of each pixel that a shape covers.
  function cover(side, shape) {
    const steps = Array.from({length: POINTS}, (_, at) => (at + 0.5) / POINTS);
    return Array.from({length: side * side}, (_, at) =>
      sumOf(steps.flatMap(y => steps.map(x => shape((at % side + x) / side, (Math.floor(at / side) + y) / side)))) / POINTS ** 2);
  }

  // Return the mean colour below a shape.
  function mean(values, side, shape) {
    const shares = cover(side, shape), total = sumOf(shares);
    return [0, 1, 2].map(channel => sumOf(shares.map((share, at) => share * values[3 * at + channel])) / total);
  }

  // Return new pixels: below a shape they are blended with the colours that `paint` has for theirs.
  function over(values, side, shape, strength, paint) {
    return pixels(cover(side, shape).map((share, at) => blend(colourAt(values, at), paint(colourAt(values, at)), strength * share)));
  }

  const mixed = (one, other, share) => pixels(blend([...one], other, share));

  const EDITS = {
    "Sunglasses": (values, side) => over(values, side, LENSES, 0.85, () => SHADES),
    "Beard": (values, side) => {
      const skin = mean(values, side, CHEEKS), hair = mean(values, side, FOREHEAD);
      const colour = light(hair) < 0.75 * light(skin) ? blend(hair, BROWN, 0.3) : BROWN;  // bald people have brown beards
      return over(values, side, BEARD, 0.75, below => shaded(colour, below, skin, 0.5));
    },
    "Red cap": (values, side) => {
      const usual = mean(values, side, CROWN);
      return over(over(values, side, CROWN, 0.85, below => shaded(RED, below, usual, 0.2)), side, VISOR, 0.85, () => times(RED, 0.7));
    },
    "Green skin": (values, side) => over(values, side, FACE, 0.85, below => blend(below, Array(3).fill(light(below)), 0.65).map((value, at) => value * GREEN[at])),
    "Older": (values, side) => {
      const grey = over(values, side, HAIR, 1, below => Array(3).fill(light(below) + 0.45 * Math.max(GREY - light(below), 0)));
      return over(grey, side, FACE, 0.3, below => blend(Array(3).fill(light(below)), AGED, 0.3));
    },
    "Mix two people": (values, side, people) => mixed(...pair(people, digest(values)), 0.5),
  };

  // Return a number that other values hardly ever have: the digest FNV-1a.
  const digest = values => values.reduce((sum, value) => Math.imul(sum ^ value, 16777619) >>> 0, 2166136261);

  // Return two different people, by a number.
  function pair(people, number) {
    const one = number % people.length, step = 1 + Math.floor(number / people.length) % (people.length - 1);
    return [people[one], people[(one + step) % people.length]];
  }

  // Return whether pixels come from a picture: those that a visitor paints have few colours.
  function isPicture(values) {
    const colours = Array.from({length: values.length / 3}, (_, at) => colourAt(values, at).join());
    return new Set(colours).size >= COLOURS * colours.length;
  }

  superres.edits = {
    names: Object.keys(EDITS),
    // Return the pixels with an edit, so that edits add up; what a visitor has painted is no face, and one of the people takes its place.
    apply: (name, values, side, people) => EDITS[name](isPicture(values) ? values : people[digest(values) % people.length], side, people),
    // Return two people in one, in slightly other colours.
    surprise(people, side, random = Math.random) {
      const both = mixed(...pair(people, Math.floor(random() * people.length ** 2)), 0.3 + 0.4 * random()), turn = HUE * (2 * random() - 1);
      return both.map((value, at) => {
        const next = both[at % 3 < 2 ? at + 1 : at - 2], before = both[at % 3 ? at - 1 : at + 2];
        return Math.round(value + (turn > 0 ? turn * (next - value) : -turn * (before - value)));
      });
    },
  };
})();
