// Panels of the whole session: evidence, latency, and its state in words and numbers.

import { Calm, Figure, colour } from "./figures.js";

const Bokeh = globalThis.Bokeh;
const SLOW_MS = 400; // they are read, not watched
const READ_MS = 100;
const ROOM = 0.03;

/** Changes at most so often, and only if something came. */
const seldom = (milliseconds, store) => Math.floor(performance.now() / milliseconds) * Math.sign(store.versions.bins);

/** Show a number, with all its digits for those who ask. */
export function show(id, value, text) {
  const element = document.getElementById(id);
  if (element === null) return;
  const known = value !== null && value !== undefined && !Number.isNaN(value);
  const shown = known ? text ?? Number(value).toLocaleString("en") : "–";
  if (element.textContent !== shown) element.textContent = shown;
  element.dataset.value = String(value);
}

export function fixed(value, digits) {
  return Number.isFinite(value) ? value.toFixed(digits).replace("-", "−") : "–";
}

function clock(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const [hours, rest] = [Math.floor(seconds / 3600), seconds % 3600];
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  return `${hours ? `${hours}:` : ""}${two(rest / 60)}:${two(rest % 60)}`;
}

export class Evidence {
  constructor() {
    const axes = ["seconds since the first bin", "nats per bin"];
    this.figure = new Figure("plot-evidence", { axes, x: [0, 10], y: [-0.5, 1], ticks: 4 });
    const line = { x: { field: "x" }, y: { field: "y" } };
    this.zero = this.figure.add("line", { x: [0, 1e9], y: [0, 0] }, line, { line_width: 1 }, "glyph");
    this.lines = [0, 1].map(() => this.figure.add("line", { x: [], y: [] }, line, { line_width: 2 }));
    this.ends = this.figure.add("scatter", { x: [], y: [], color: [] }, {
      x: { field: "x" }, y: { field: "y" }, fill_color: { field: "color" }, line_color: null,
    }, { size: 7 });
    this.figure.follow(() => {
      this.zero.renderer.glyph.line_color = colour("soft");
      this.lines.forEach((each, index) => { each.renderer.glyph.line_color = colour(`c${index}`); });
    });
    this.ranges = [new Calm(0, 10), new Calm()];
    this.due = (store) => store.versions.evidence;
    this.newest = (store) => store.evidence.last?.[0] ?? NaN;
  }

  draw({ evidence }) {
    const { last } = evidence;
    if (last === null) return;
    const rows = evidence.rows.at(-1) === last ? evidence.rows : [...evidence.rows, last];
    const x = rows.map((row) => row[0]);
    this.lines.forEach((line, index) => { line.data = { x: x.slice(), y: rows.map((row) => row[index + 1]) }; });
    this.ends.data = { x: [last[0], last[0]], y: [last[1], last[2]], color: [colour("c0"), colour("c1")] };
    const values = rows.flatMap((row) => [row[1], row[2]]).filter(Number.isFinite);
    // With room for the last point: half of it would be cut off at the border.
    this.ranges[0].fit(x[0], Math.max(x.at(-1) + ROOM * (x.at(-1) - x[0]), x[0] + 10));
    this.ranges[1].fit(Math.min(0, ...values), Math.max(0, ...values));
    this.figure.range("x_range", x[0], this.ranges[0].high);
    this.figure.range("y_range", this.ranges[1].low, this.ranges[1].high);
    for (const [id, value] of [["evidence-walk", last[1]], ["evidence-initial", last[2]]]) {
      show(id, value, Number.isFinite(value) ? `${value >= 0 ? "+" : ""}${fixed(value, 2)}` : "–");
    }
  }
}

export class Latency {
  constructor() {
    const axes = ["ms from arrival to estimate", "% of bins"];
    this.figure = new Figure("plot-latency", { axes, x: [-2, 4], y: [0, 100], ticks: 4 });
    const ticks = [-2, -1, 0, 1, 2, 3.5];
    const texts = ["0.01", "0.1", "1", "10", "100", "missing"];
    const [axis] = this.figure.axes;
    axis.ticker = new Bokeh.FixedTicker({ ticks });
    axis.major_label_overrides = new Map(ticks.map((tick, index) => [tick, texts[index]]));
    const field = (name) => ({ field: name });
    this.bars = this.figure.add("quad", { left: [], right: [], top: [], color: [] }, {
      left: field("left"), right: field("right"), top: field("top"), bottom: 0,
      fill_color: field("color"), line_color: null,
    });
    this.limit = this.figure.add("line", { x: [], y: [] }, {
      x: field("x"), y: field("y"), line_dash: "dashed",
    }, { line_width: 1.5 });
    this.texts = this.figure.add("text", { x: [], y: [], text: [] }, {
      x: field("x"), y: field("y"), text: field("text"), text_baseline: "top", text_align: "right",
      x_offset: -4, y_offset: 3,
    }, { text_font_size: 11 });
    this.figure.follow(() => {
      this.limit.renderer.glyph.line_color = colour("soft");
      this.texts.renderer.glyph.text_color = colour("soft");
      this.colours = ["c0", "c1"].map(colour);
    });
    this.due = (store) => seldom(SLOW_MS, store);
    this.newest = (store) => store.now;
    this.top = 0;
  }

  draw({ latency, hello }) {
    const total = latency.ring.length;
    if (total === 0) return;
    const { low, high, bars, counts, missing } = latency;
    const wide = (high - low) / bars;
    const limit = Math.log10(1000 * hello.bin_width);
    const left = Array.from(counts, (_, k) => low + k * wide);
    const top = Array.from(counts, (count) => (100 * count) / total);
    const color = left.map((edge) => this.colours[Number(edge >= limit)]);
    this.bars.data = {
      left: [...left, 3.25],
      right: [...left.map((edge) => edge + 0.92 * wide), 3.75],
      top: [...top, (100 * missing) / total],
      color: [...color, this.colours[1]],
    };
    const most = Math.max(...top, (100 * missing) / total) * 1.12;
    if (most > this.top || most < 0.6 * this.top) this.top = most * 1.1;
    this.figure.range("y_range", 0, this.top);
    this.limit.data = { x: [limit, limit], y: [0, this.top] };
    this.texts.data = { x: [limit], y: [this.top], text: ["one bin"] };
  }
}

/** Numbers of the newest bin and of the last report, and what they mean. */
export class Numbers {
  constructor() {
    this.due = (store) => seldom(READ_MS, store);
    this.newest = (store) => store.now;
  }

  draw(store) {
    const { seq, now, elbo, report, hello } = store;
    show("bin", seq);
    show("time", now, clock(now));
    show("elbo", elbo, `${fixed(elbo, 2)} nats`);
    show("skipped", store.skipped, `${store.skipped.toLocaleString("en")} bins`);
    const { last } = store.mean;
    for (let latent = 0; latent < hello.latents; latent += 1) {
      show(`mean-${latent}`, last[latent], fixed(last[latent], 2));
    }
    const mark = store.marks.at(-1);
    show("event", mark?.seq ?? -1, mark ? `“${mark.text}” at bin ${mark.seq.toLocaleString("en")}` : "none");
    if (report) this.tell(report);
    this.age(store);
  }

  tell(report) {
    const { counters = {}, latency_ns: latency = [] } = report;
    show("rate", report.rate, fixed(report.rate, 1));
    ["latency-median", "latency-p99"].forEach((id, which) => {
      const milliseconds = report.taken !== 0 && Number.isFinite(latency[which]) ? latency[which] / 1e6 : NaN;
      show(id, milliseconds, `${fixed(milliseconds, milliseconds < 10 ? 2 : 0)} ms`);
    });
    show("late", counters.late);
    show("lost", counters.lost);
    show("learned", report.learned, `${Number(report.learned).toLocaleString("en")} bins${since(report)}`);
    show("durable", report.acknowledged, report.acknowledged < 0 ? "none yet" : undefined);
    const odd = Object.entries(report.odd ?? {}).map(([what, num]) => `, ${num.toLocaleString("en")} ${what}`);
    show("refused", report.refused, odd.length ? `${report.refused.toLocaleString("en")} refused${odd.join("")}` : undefined);
  }

  age({ field, hello }) {
    if (!field) {
      document.getElementById("field-age").textContent = "the field is being computed";
      return;
    }
    const seconds = field.seconds_old + (performance.now() - field.received) / 1000;
    const ago = hello.mode === "view" ? "" : `, ${seconds.toFixed(0)} s ago`;
    show("field-age", field.bins, `at bin ${Number(field.bins).toLocaleString("en")}${ago}`);
  }
}

const PHASES = {
  starting: "Programs are being compiled; no bin is accepted yet.",
  ready: "Bins are filtered and published.",
  degraded: "The journal cannot be written: nothing is acknowledged, filtering goes on.",
  failed: "The session cannot go on; what the journal holds is whole.",
  closed: "The session is closed.",
};

/** What is counted by a process is not of the whole session once that was resumed. */
const since = (report) => (report.bins > report.taken ? " since the resume" : "");

/** State of the session and of learning, which are told even while the display is paused. */
export function tellState(report) {
  const share = report.taken > 0 ? Math.round((100 * report.learned) / report.taken) : 0;
  const why = report.why && !["ready", "starting"].includes(report.phase) ? ` (${report.why})` : "";
  const learning = report.frozen
    ? "Learning is frozen: the model stays as it is."
    : `The model learned after ${share} % of bins${since(report)}.`;
  const stimulation = report.stimulation ? ` Stimulation is ${report.stimulation}.` : "";
  const begun = report.phase !== "ready" || report.bins > 0;
  show("phase", report.phase, report.phase);
  document.getElementById("phase").dataset.tone = { ready: "good", starting: "wait", closed: "wait" }[report.phase] ?? "bad";
  document.getElementById("words").textContent = `${begun ? PHASES[report.phase] ?? "" : "No bins have come yet."}${why} ${learning}${stimulation}`;
  show("frozen", Boolean(report.frozen), report.frozen ? "frozen" : "learning");
  document.getElementById("frozen").dataset.tone = report.frozen ? "wait" : "good";
}
