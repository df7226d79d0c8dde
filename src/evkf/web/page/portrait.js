// The phase portrait: the learned flow, where it rests and turns, and where the state is now.

import { Calm, Figure, colour } from "./figures.js";

const PIECES = 14; // of the comet's tail, each fainter than the next
const TAIL = 280; // points of it
const ARROWS = 13; // a side
const TURN_S = 24; // seconds of a turn
const WIDE = Math.sqrt(5.991); // radius of a 95 % ellipse
const CORNERS = 48;
const ROOM = 0.15; // of the path, on either side of it

/** Two rows of numbers that latents are seen through. */
export function seen(store, { view, axes }, now, before) {
  const { latents } = store.hello;
  const unit = (index) => Float64Array.from({ length: latents }, (_, i) => Number(i === index));
  if (view === "principal" && latents > 2) return principal(store, before);
  if (view === "turning" && latents > 2) {
    const angle = (2 * Math.PI * now) / 1000 / TURN_S;
    const tilt = 0.42;
    const [a, b, c] = axes.map((axis) => unit(axis));
    const mix = (p, q, r) => a.map((_, i) => p * a[i] + q * b[i] + r * c[i]);
    const across = mix(Math.cos(angle), Math.sin(angle), 0);
    const rise = mix(-Math.sin(angle) * Math.sin(tilt), Math.cos(angle) * Math.sin(tilt), Math.cos(tilt));
    return [across, rise];
  }
  return [unit(axes[0]), unit(latents > 1 ? axes[1] : 0)];
}

/** Directions in which the state varied most lately, by a few steps of the power method. */
function principal(store, before) {
  const { latents } = store.hello;
  const rows = store.rows(200);
  const centre = new Float64Array(latents);
  for (const row of rows) for (let i = 0; i < latents; i += 1) centre[i] += store.mean.get(row, i) / rows.length;
  const found = [];
  for (let which = 0; which < 2; which += 1) {
    let along = before?.[which] ?? Float64Array.from({ length: latents }, (_, i) => 1 / (1 + i + which));
    for (let step = 0; step < (before ? 1 : 25); step += 1) {
      const next = new Float64Array(latents);
      for (const row of rows) {
        let dot = 0;
        for (let i = 0; i < latents; i += 1) dot += (store.mean.get(row, i) - centre[i]) * along[i];
        for (let i = 0; i < latents; i += 1) next[i] += (store.mean.get(row, i) - centre[i]) * dot;
      }
      for (const other of found) {
        const dot = next.reduce((sum, value, i) => sum + value * other[i], 0);
        next.forEach((value, i) => { next[i] = value - dot * other[i]; });
      }
      const size = Math.hypot(...next);
      if (size > 1e-12) along = next.map((value) => value / size);
    }
    found.push(along);
  }
  return found;
}

function dot(row, state, at = 0) {
  let sum = 0;
  for (let i = 0; i < row.length; i += 1) sum += row[i] * state[at + i];
  return sum;
}

/** Corners of the ellipse that the state is in, with 95 %. */
function ellipse([across, rise], cov, [x, y]) {
  const size = across.length;
  const product = (p, q) => {
    let sum = 0;
    for (let i = 0; i < size; i += 1) for (let j = 0; j < size; j += 1) sum += p[i] * cov[i * size + j] * q[j];
    return sum;
  };
  const [a, b, c] = [product(across, across), product(across, rise), product(rise, rise)];
  const low = Math.sqrt(Math.max(a, 1e-12));
  const rest = Math.sqrt(Math.max(c - (b / low) ** 2, 0));
  const turns = Float64Array.from({ length: CORNERS + 1 }, (_, k) => (2 * Math.PI * k) / CORNERS);
  return {
    x: turns.map((turn) => x + WIDE * low * Math.cos(turn)),
    y: turns.map((turn) => y + WIDE * ((b / low) * Math.cos(turn) + rest * Math.sin(turn))),
  };
}

/** A field between the points it is known at; `across` and `up` run from 0 to 1. */
function between(values, columns, rows, across, up) {
  const [x, y] = [across * (columns - 1), up * (rows - 1)];
  const [column, row] = [Math.min(Math.floor(x), columns - 2), Math.min(Math.floor(y), rows - 2)];
  const [right, top] = [x - column, y - row];
  const at = row * columns + column;
  const low = (1 - right) * values[at] + right * values[at + 1];
  const high = (1 - right) * values[at + columns] + right * values[at + columns + 1];
  return (1 - top) * low + top * high;
}

/** Strokes of arrows where the field is known and seen; slower ones are shorter and fainter. */
function arrows({ x, y }, u, v, [left, right, low, high]) {
  const [wide, tall] = [(right - left) / ARROWS, (high - low) / ARROWS];
  const found = [];
  for (let row = 0; row < ARROWS; row += 1) {
    for (let column = 0; column < ARROWS; column += 1) {
      const [atX, atY] = [left + (column + 0.5) * wide, low + (row + 0.5) * tall];
      const place = [(atX - x[0]) / (x.at(-1) - x[0]), (atY - y[0]) / (y.at(-1) - y[0])];
      if (place.some((share) => !(share >= 0 && share <= 1))) continue;
      const across = between(u, x.length, y.length, ...place) / wide;
      const rise = between(v, x.length, y.length, ...place) / tall;
      const speed = Math.hypot(across, rise);
      if (speed > 0) found.push([atX, atY, across / speed, rise / speed, speed]);
    }
  }
  const top = Math.max(...found.map((each) => each[4]));
  const strokes = { x0: [], y0: [], x1: [], y1: [], alpha: [] };
  for (const [atX, atY, across, rise, speed] of found) {
    const length = 0.25 + 0.65 * (speed / top) ** 0.4;
    const [dx, dy] = [across * length, rise * length];
    const tip = [atX + 0.5 * dx * wide, atY + 0.5 * dy * tall];
    for (const [toX, toY] of [
      [-dx, -dy],
      [-0.32 * dx - 0.2 * dy, -0.32 * dy + 0.2 * dx],
      [-0.32 * dx + 0.2 * dy, -0.32 * dy - 0.2 * dx],
    ]) {
      strokes.x0.push(tip[0]);
      strokes.y0.push(tip[1]);
      strokes.x1.push(tip[0] + toX * wide);
      strokes.y1.push(tip[1] + toY * tall);
      strokes.alpha.push(0.4 + 0.5 * Math.sqrt(speed / top));
    }
  }
  return strokes;
}

/** One portrait: a field that stands still, and what moves over it. */
class Plane {
  constructor(id) {
    const figure = new Figure(id, { axes: ["z0", "z1"], x: [-1, 1], y: [-1, 1], left: 48 });
    this.figure = figure;
    this.arrows = figure.add("segment", { x0: [], y0: [], x1: [], y1: [], alpha: [] }, {
      x0: { field: "x0" }, y0: { field: "y0" }, x1: { field: "x1" }, y1: { field: "y1" },
      line_alpha: { field: "alpha" },
    }, { line_width: 1.1 }, "glyph");
    const line = { x: { field: "x" }, y: { field: "y" } };
    this.cycle = figure.add("line", { x: [], y: [] }, { ...line, line_dash: [6, 4] }, { line_width: 2 });
    this.fixed = figure.add("scatter", { x: [], y: [], fill: [] }, {
      ...line, fill_color: { field: "fill" },
    }, { size: 10, line_width: 2 });
    this.tail = figure.add("multi_line", { xs: [], ys: [], alpha: [], width: [] }, {
      xs: { field: "xs" }, ys: { field: "ys" }, line_alpha: { field: "alpha" },
      line_width: { field: "width" }, line_cap: "round",
    });
    this.ahead = figure.add("line", { x: [], y: [] }, { ...line, line_dash: [2, 3] }, { line_width: 2 });
    this.ellipse = figure.add("patch", { x: [], y: [] }, { ...line, fill_alpha: 0.18 }, { line_width: 1.5 });
    this.head = figure.add("scatter", { x: [], y: [] }, line, { size: 9, line_width: 1.5 });
    figure.follow(() => {
      const [path, rest] = [colour("c0"), colour("c1")];
      this.arrows.renderer.glyph.line_color = colour("field");
      for (const part of [this.cycle, this.fixed]) part.renderer.glyph.line_color = rest;
      for (const part of [this.tail, this.ahead, this.ellipse]) part.renderer.glyph.line_color = path;
      for (const part of [this.ellipse, this.head]) part.renderer.glyph.fill_color = path;
      this.head.renderer.glyph.line_color = colour("panel");
      this.rest = [rest, colour("panel")];
    });
  }

  label(texts) {
    this.figure.axes.forEach((axis, index) => {
      if (axis.axis_label !== texts[index]) axis.axis_label = texts[index];
    });
  }

  drawField(field, [u, v], box) {
    const none = { x0: [], y0: [], x1: [], y1: [], alpha: [] };
    this.arrows.data = field && u ? arrows(field, u, v, box) : none;
  }
}

export class Portrait {
  constructor(choice) {
    this.choice = choice;
    this.learned = new Plane("plot-portrait");
    this.truth = new Plane("plot-truth");
    this.ranges = [new Calm(-1, 1, 20), new Calm(-1, 1, 20)];
    this.due = (store) => store.versions.bins + (this.turning(store) ? performance.now() : 0);
    this.drawn = null;
  }

  turning(store) {
    return this.choice.view === "turning" && store.hello.latents > 2;
  }

  get planes() {
    return this.choice.truth ? [this.learned, this.truth] : [this.learned];
  }

  draw(store) {
    const { choice } = this;
    if (choice.changed(this)) this.ranges.forEach((range) => { range.fresh = true; });
    this.seen = seen(store, choice, performance.now(), choice.view === "principal" ? this.seen : null);
    const flat = choice.view === "plane" || store.hello.latents < 3;
    const fits = flat && store.field && String(store.field.plane) === String(choice.plane);
    const field = fits ? store.field : null;
    const paths = this.paths(store);
    this.fit(paths, flat);
    const box = this.ranges.flatMap(({ low, high }) => [low, high]);
    const drawn = `${store.versions.field} ${fits} ${choice.truth} ${choice.plane} ${box}`;
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      this.learned.drawField(field, [field?.u, field?.v], box);
      this.truth.drawField(field, [field?.true_u, field?.true_v], box);
    }
    document.getElementById("field-note").textContent = flat ? "" : ", arrows in a view of two latents";
    const name = (axis) => `z${axis}`;
    const labels = {
      plane: choice.plane.map(name),
      principal: ["first principal direction", "second"],
      turning: [`${name(choice.axes[0])} and ${name(choice.axes[1])}, turning`, `${name(choice.axes[2])}, from above`],
    };
    for (const plane of this.planes) {
      plane.label(flat ? labels.plane : labels[choice.view]);
      this.fill(plane, paths);
    }
  }

  /** All that moves, as it is seen. */
  paths(store) {
    const { seen: rows, choice } = this;
    const { latents } = store.hello;
    const line = (states, count, row0 = 0) => [0, 1].map((which) =>
      Float64Array.from({ length: count }, (_, k) => dot(rows[which], states, (row0 + k) * latents)));
    const recent = store.rows(2 * TAIL).slice(-TAIL);
    const tail = [new Float64Array(recent.length), new Float64Array(recent.length)];
    const state = new Float64Array(latents);
    recent.forEach((row, k) => {
      for (let i = 0; i < latents; i += 1) state[i] = store.mean.get(row, i);
      for (const which of [0, 1]) tail[which][k] = dot(rows[which], state);
    });
    const head = [0, 1].map((which) => dot(rows[which], store.mean.last));
    const steps = Math.min(choice.horizon, store.steps);
    const { field } = store;
    const cycle = field?.cycle?.length ? line(field.cycle, field.cycle.shape[0]) : [[], []];
    const rests = (field?.fixed ?? []).filter(({ at }) => at?.length === latents);
    return {
      tail,
      head,
      ahead: line(store.ahead, steps).map((each, which) => [head[which], ...each]),
      ellipse: ellipse(rows, store.cov, head),
      cycle: cycle.map((each) => (each.length ? [...each, each[0]] : [])),
      fixed: rests.map(({ at, stable }) => [dot(rows[0], at), dot(rows[1], at), stable]),
    };
  }

  /** Latents have a scale each; directions that are mixed of them have the same. */
  fit({ tail, cycle, ellipse: round }, flat) {
    [round.x, round.y].forEach((edge, which) => {
      const side = [...tail[which], ...edge, ...cycle[which]];
      const [low, high] = [Math.min(...side), Math.max(...side)];
      const room = ROOM * (high - low);
      this.ranges[which].fit(low - room, high + room);
    });
    const [x, y] = this.ranges;
    for (const { figure } of this.planes) {
      if (flat) {
        figure.range("x_range", x.low, x.high);
        figure.range("y_range", y.low, y.high);
        continue;
      }
      const { aspect } = figure;
      const tall = Math.max(y.high - y.low, (x.high - x.low) / aspect);
      const middle = [(x.low + x.high) / 2, (y.low + y.high) / 2];
      figure.range("x_range", middle[0] - (tall * aspect) / 2, middle[0] + (tall * aspect) / 2);
      figure.range("y_range", middle[1] - tall / 2, middle[1] + tall / 2);
    }
  }

  fill(plane, { tail, head, ahead, ellipse: round, cycle, fixed }) {
    const size = tail[0].length;
    const pieces = Array.from({ length: PIECES }, (_, k) => [
      Math.floor((k * (size - 1)) / PIECES),
      Math.floor(((k + 1) * (size - 1)) / PIECES) + 1,
    ]).filter(([from, to]) => to - from > 1);
    plane.tail.data = {
      xs: pieces.map(([from, to]) => tail[0].slice(from, to)),
      ys: pieces.map(([from, to]) => tail[1].slice(from, to)),
      alpha: pieces.map((_, k) => ((k + 1) / pieces.length) ** 1.5),
      width: pieces.map((_, k) => (1 + (2.5 * (k + 1)) / pieces.length) * plane.figure.scale),
    };
    plane.ahead.data = { x: ahead[0], y: ahead[1] };
    plane.ellipse.data = round;
    plane.head.data = { x: [head[0]], y: [head[1]] };
    const own = plane === this.learned;
    plane.cycle.data = own ? { x: cycle[0], y: cycle[1] } : { x: [], y: [] };
    const rests = own ? fixed : [];
    plane.fixed.data = {
      x: rests.map(([x]) => x),
      y: rests.map(([, y]) => y),
      fill: rests.map(([, , stable]) => this.learned.rest[stable ? 0 : 1]),
    };
  }
}
