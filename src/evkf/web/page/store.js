// The state of the page: what the session said last, and the last seconds of its stream.

import { checkBins, checkField } from "./decode.js";
import { Columns, Course, Histogram, Ring } from "./rings.js";

const BRIDGED = 1;
const UNSEEN = 255;
const LATENCIES = 20000;
const MARKS = 200;

/** Seconds that are shown of a stream. */
function windowOf(binWidth) {
  if (binWidth <= 0.002) return 5;
  return binWidth <= 0.025 ? 10 : Math.min(600, Math.ceil(40 * binWidth) * 10);
}

export class Store {
  constructor(hello) {
    this.hello = hello;
    this.seconds = windowOf(hello.bin_width);
    const bins = Math.ceil(this.seconds / hello.bin_width);
    this.time = new Ring(bins);
    this.mean = new Ring(bins, hello.latents);
    this.var = new Ring(bins, hello.latents);
    this.counts = new Columns(hello.channels, bins);
    this.rates = new Columns(hello.channels, bins, { most: false });
    this.latency = new Histogram(0.01, 1000, 60, LATENCIES);
    this.evidence = new Course();
    this.versions = { bins: 0, field: 0, evidence: 0 };
    this.report = null;
    this.field = null;
    this.clear();
  }

  clear() {
    for (const ring of [this.time, this.mean, this.var, this.counts, this.rates, this.latency]) {
      ring.clear();
    }
    this.evidence.clear();
    this.compared = null; // evidence whose time is not known yet
    this.marks = [];
    this.seq = -1;
    this.skipped = 0;
    this.elbo = NaN;
    this.cov = null;
    this.ahead = this.aheadVar = new Float64Array(0);
    this.steps = 0;
    this.topRate = 0;
  }

  /** Take in a message; whether it was of bins. */
  take(message) {
    const { header } = message;
    if (header.kind === "bins") {
      checkBins(message, this.hello);
      this.takeBins(message);
      return true;
    }
    if (header.kind === "field") {
      checkField(message, this.hello);
      this.field = { ...header, ...message.arrays, received: performance.now() };
      this.versions.field += 1;
    }
    return false;
  }

  takeBins({ header, arrays }) {
    const bins = arrays.time.length;
    if (bins > 0) {
      if (arrays.time[0] <= this.now) this.clear(); // it is told again, or began anew
      const shown = Math.min(bins, this.time.room);
      this.time.push(arrays.time, bins - shown, shown);
      this.mean.push(arrays.mean, bins - shown, shown);
      this.var.push(arrays.var, bins - shown, shown);
      this.takeChannels(arrays, bins);
      const seq = header.last ?? header.first + bins - 1;
      if (seq < this.seq) this.marks = []; // numbers began anew: what was marked has no place among them
      this.seq = seq;
      this.elbo = arrays.elbo[bins - 1];
      this.cov = arrays.cov;
      this.ahead = arrays.ahead;
      this.aheadVar = arrays.ahead_var;
      this.steps = arrays.ahead.shape[0];
      this.versions.bins += 1;
    }
    this.skipped += header.skipped ?? 0;
    for (const mark of header.marks ?? []) this.marks.push(mark);
    this.marks.splice(0, Math.max(0, this.marks.length - MARKS));
    if (header.evidence) this.compared = header.evidence;
    // A page that was just opened may be told of evidence before it knows the time.
    if (this.compared && Number.isFinite(this.now)) {
      const { model, random_walk: walk, initial } = this.compared;
      this.evidence.push([this.now, model - walk, model - initial]);
      this.versions.evidence += 1;
      this.compared = null;
    }
    if (header.report) this.report = header.report;
  }

  /** Place of a bin in time: its number may begin anew, time does not. */
  place(time) {
    return Math.round(time / this.hello.bin_width);
  }

  takeChannels({ time, counts, rate, flags, latency }, bins) {
    const { channels } = this.hello;
    for (let k = 0; k < bins; k += 1) {
      const missing = (flags[k] & BRIDGED) !== 0;
      // What nobody watched is not missing: nothing is drawn before the first bin that is known.
      const seen = () => counts.slice(k * channels, (k + 1) * channels).some((count) => count !== UNSEEN);
      if (this.counts.newest >= 0 || seen()) this.counts.put(this.place(time[k]), counts, k * channels, UNSEEN);
      if (missing || !Number.isNaN(latency[k])) this.latency.put(missing ? NaN : latency[k]);
    }
    const rated = Math.min(rate.shape[0], bins);
    for (let k = 0; k < rated; k += 1) {
      const place = this.place(time[bins - rated + k]);
      const at = (rate.shape[0] - rated + k) * channels;
      this.rates.advance(Math.floor(place / this.rates.binsPer) - 1, true);
      this.rates.put(place, rate, at, NaN);
    }
    if (rated > 0) {
      // Few are faster than this; one that is must not leave the others dark.
      const last = rate.slice((rate.shape[0] - 1) * channels).sort();
      const top = 1.1 * last[Math.floor(0.98 * (channels - 1))];
      if (top > 0) this.topRate = Math.max(top, this.topRate * 0.99);
    }
  }

  /** Seconds of the newest bin. */
  get now() {
    return this.time.total === 0 ? NaN : this.time.last[0];
  }

  /** Rows to draw: no more than a screen has room for, the same ones as long as they are there. */
  rows(most) {
    const { length, total } = this.time;
    const step = Math.max(1, Math.ceil(length / most));
    const found = [];
    for (let row = (step - (((total - length) % step) || step)) % step; row < length; row += step) {
      found.push(row);
    }
    if (length > 0 && found.at(-1) !== length - 1) found.push(length - 1);
    return found;
  }
}
