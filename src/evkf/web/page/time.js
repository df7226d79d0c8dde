// Panels over time: latents with forecast, spikes, rates. Time runs from the left to now.

import { Calm, Figure, bitmap, colour, pixel, traceColour } from "./figures.js";

const DRAWN = 500; // points of a trace
const GAP = 20; // bins, beyond which a trace is not drawn through
const WIDE = 1.96; // standard deviations of a 95 % band

// Cividis, which looks alike to all eyes.
const STOPS = ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"];

function palette(size) {
  const stops = STOPS.map((text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)));
  return Uint32Array.from({ length: size }, (_, index) => {
    const place = (index / (size - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    const [r, g, b] = [0, 1, 2].map((i) =>
      Math.round(stops[low][i] + (place - low) * (stops[low + 1][i] - stops[low][i])),
    );
    return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  });
}

const SHADES = palette(256);

/** Colour of a share of the scale: with its root, so that slow channels are told apart too. */
export function shadeOf(share) {
  return SHADES[share < 1 ? (255 * Math.sqrt(share)) | 0 : 255];
}

/** There and back along a band, for a polygon. */
function band(xs, low, high) {
  return { x: [...xs, ...xs.slice().reverse()], y: [...low, ...high.slice().reverse()] };
}

export class Latents {
  constructor(choice) {
    this.choice = choice; // latents that are drawn, and how far ahead
    this.range = new Calm();
    const y = [-1, 1];
    this.past = new Figure("plot-latents", { axes: ["seconds before now", "state"], x: [-10, 0], y });
    this.future = new Figure("plot-forecast", { axes: ["seconds ahead", null], x: [-1, 1], y, left: 8 });
    this.future.unlabelled = this.future.axes[1];
    this.future.dress();
    this.ticker = new globalThis.Bokeh.FixedTicker({ ticks: [] });
    this.future.axes[0].ticker = this.ticker;
    this.parts = [this.past, this.future].map((figure) => ({
      bands: figure.add("patches", { xs: [], ys: [], color: [] }, {
        xs: { field: "xs" },
        ys: { field: "ys" },
        fill_color: { field: "color" },
        fill_alpha: 0.2,
        line_color: null,
      }),
      lines: figure.add("multi_line", { xs: [], ys: [], color: [], dash: [] }, {
        xs: { field: "xs" },
        ys: { field: "ys" },
        line_color: { field: "color" },
        line_dash: { field: "dash" },
      }, { line_width: 1.8 }),
    }));
    this.marks = this.past.add("segment", { x: [], low: [], high: [] }, {
      x0: { field: "x" }, x1: { field: "x" }, y0: { field: "low" }, y1: { field: "high" },
      line_dash: "dashed",
    }, { line_width: 1.2 });
    this.texts = this.past.add("text", { x: [], y: [], text: [] }, {
      x: { field: "x" }, y: { field: "y" }, text: { field: "text" },
      x_offset: 4, y_offset: 2, text_baseline: "top",
    }, { text_font_size: 11 });
    this.now = this.future.add("segment", { x: [0], low: [0], high: [0] }, {
      x0: { field: "x" }, x1: { field: "x" }, y0: { field: "low" }, y1: { field: "high" },
    }, { line_width: 1 });
    const dress = () => {
      this.marks.renderer.glyph.line_color = colour("ink");
      this.texts.renderer.glyph.text_color = colour("ink");
      this.now.renderer.glyph.line_color = colour("soft");
    };
    this.past.follow(dress);
    this.due = (store) => store.versions.bins;
  }

  draw(store) {
    const { hello, now } = store;
    const shown = this.choice.drawn.filter((latent) => latent < hello.latents);
    const steps = Math.min(this.choice.horizon, store.steps);
    const ahead = Math.max(steps, 1) * hello.bin_width;
    let [low, high] = [Infinity, -Infinity];
    const reach = (traces) => {
      for (const { bottom, top } of traces) {
        for (const value of bottom) if (value < low) low = value;
        for (const value of top) if (value > high) high = value;
      }
      return traces;
    };
    const rows = store.rows(DRAWN);
    const past = reach(this.traces(store, rows, shown));
    const recent = [];
    for (let row = store.time.length - 1; row >= 0 && now - store.time.get(row) <= ahead; row -= 1) {
      recent.unshift(row);
    }
    const near = this.traces(store, recent, shown);
    const fan = reach(shown.map((latent) => this.fan(store, latent, steps)));
    this.fill(this.parts[0], past);
    this.fill(this.parts[1], [...near, ...fan], near.length);
    this.range.fit(low, high);
    for (const figure of [this.past, this.future]) figure.range("y_range", this.range.low, this.range.high);
    this.past.range("x_range", -store.seconds, 0);
    this.future.range("x_range", -ahead, ahead);
    const tick = Number((ahead / 2).toPrecision(1));
    if (this.ticker.ticks[2] !== tick) this.ticker.ticks = [-tick, 0, tick];
    this.now.data = { x: [0], low: [this.range.low], high: [this.range.high] };
    this.drawMarks(store);
  }

  /** Traces of latents, in pieces where bins are missing between. */
  traces(store, rows, shown) {
    const apart = GAP * store.hello.bin_width * Math.max(1, store.time.length / DRAWN);
    const pieces = [[]];
    rows.forEach((row, index) => {
      if (index > 0 && store.time.get(row) - store.time.get(rows[index - 1]) > apart) pieces.push([]);
      pieces.at(-1).push(row);
    });
    return shown.flatMap((latent) => pieces.map((piece) => this.trace(store, piece, latent)));
  }

  trace(store, rows, latent) {
    const { now } = store;
    const [x, y, bottom, top] = [0, 1, 2, 3].map(() => new Float64Array(rows.length));
    rows.forEach((row, index) => {
      const half = WIDE * Math.sqrt(store.var.get(row, latent));
      x[index] = store.time.get(row) - now;
      y[index] = store.mean.get(row, latent);
      bottom[index] = y[index] - half;
      top[index] = y[index] + half;
    });
    return { x, y, bottom, top, color: this.colour(latent) };
  }

  fan(store, latent, steps) {
    const { latents, bin_width: width } = store.hello;
    const [x, y, bottom, top] = [0, 1, 2, 3].map(() => new Float64Array(steps ? steps + 1 : 0));
    for (let step = 0; steps && step <= steps; step += 1) {
      const at = (step - 1) * latents + latent;
      const mean = step ? store.ahead[at] : store.mean.last[latent];
      const half = WIDE * Math.sqrt(step ? store.aheadVar[at] : store.var.last[latent]);
      [x[step], y[step], bottom[step], top[step]] = [step * width, mean, mean - half, mean + half];
    }
    return { x, y, bottom, top, color: this.colour(latent) };
  }

  colour(latent) {
    return traceColour(this.choice.place(latent));
  }

  fill(part, traces, dashed = Infinity) {
    const bands = traces.map(({ x, bottom, top }) => band(x, bottom, top));
    part.bands.data = { xs: bands.map(({ x }) => x), ys: bands.map(({ y }) => y), color: traces.map(({ color }) => color) };
    part.lines.data = {
      xs: traces.map(({ x }) => x),
      ys: traces.map(({ y }) => y),
      color: traces.map(({ color }) => color),
      dash: traces.map((_, index) => (index >= dashed ? "dashed" : "solid")),
    };
  }

  drawMarks({ marks, seq, hello, seconds }) {
    const x = marks.map((mark) => (mark.seq - seq) * hello.bin_width);
    const near = x.map((_, index) => index).filter((index) => x[index] >= -seconds);
    this.marks.data = {
      x: near.map((index) => x[index]),
      low: near.map(() => this.range.low),
      high: near.map(() => this.range.high),
    };
    this.texts.data = {
      x: near.map((index) => x[index]),
      y: near.map(() => this.range.high),
      text: near.map((index) => String(marks[index].text).slice(0, 40)),
    };
  }
}

/** Channels over time, as a bitmap. */
class Picture {
  constructor(id, below) {
    const axes = [below, "channel"];
    this.figure = new Figure(id, { axes, x: [-10, 0], y: [0, 1] });
    this.source = this.figure.add("image_rgba", { image: [], x: [], y: [], w: [], h: [] }, {
      image: { field: "image" }, x: { field: "x" }, y: { field: "y" },
      dw: { field: "w" }, dh: { field: "h" },
    });
    this.due = (store) => store.versions.bins;
  }

  show(store, columns, paint) {
    const { channels, bin_width: width } = store.hello;
    const wide = columns.columns * columns.binsPer * width;
    const end = ((columns.newest + 1) * columns.binsPer - 1 - store.place(store.now)) * width;
    this.figure.range("x_range", -store.seconds, 0);
    this.figure.range("y_range", 0, channels);
    this.source.data = {
      image: [bitmap(columns.paint(paint), columns.rows, columns.columns)],
      x: [end - wide],
      y: [0],
      w: [wide],
      h: [channels],
    };
  }
}

export class Raster extends Picture {
  constructor() {
    super("plot-raster", null);
    this.figure.follow(() => {
      this.colours = ["panel", "one", "more", "lost"].map((name) => pixel(colour(name)));
    });
    this.palette = palette(255);
  }

  draw(store) {
    const [none, one, more, lost] = this.colours;
    if (store.hello.counts === false) {
      this.show(store, store.counts, (value) => (value === value ? this.palette[value] : lost));
      return;
    }
    this.show(store, store.counts, (count) => {
      if (count === 0) return none;
      if (count === 1) return one;
      return count > 1 ? more : lost;
    });
  }
}

export class Rates extends Picture {
  constructor() {
    super("plot-rates", "seconds before now");
    this.top = new Calm(0, 1, 10);
  }

  draw(store) {
    this.top.fit(0, store.topRate);
    const { high } = this.top;
    this.show(store, store.rates, (rate) => (rate === rate ? shadeOf(rate / high) : 0));
    const counts = store.hello.counts !== false;
    const top = counts ? this.top.high / store.hello.bin_width : this.top.high;
    document.getElementById("rate-top").textContent = store.topRate === 0 ? "–" : Number(top.toPrecision(3)).toLocaleString("en");
    document.getElementById("rate-unit").textContent = counts ? "spikes/s" : "a.u.";
  }
}
