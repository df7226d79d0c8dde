// The page: what comes in is kept, and drawn at most thirty times a second.

import { Choice } from "./choice.js";
import { Connection } from "./connection.js";
import { Controls } from "./controls.js";
import { decode } from "./decode.js";
import { allFigures } from "./figures.js";
import { Evidence, Latency, Numbers, tellState } from "./gauges.js";
import { Portrait } from "./portrait.js";
import { Store } from "./store.js";
import { Latents, Raster, Rates } from "./time.js";

const FRAME_MS = 1000 / 30;
const SLACK_MS = 6; // the clock of the screen is not ours
const SLOW_FPS = 24;

const choice = new Choice();
let store = null;

const drawn = {
  latents: new Latents(choice),
  raster: new Raster(),
  rates: new Rates(),
  portrait: new Portrait(choice),
  evidence: new Evidence(),
  latency: new Latency(),
  session: new Numbers(),
};
const panels = Object.entries(drawn).map(([name, panel]) => ({
  panel,
  element: document.getElementById(`panel-${name}`),
  due: null,
}));

const connection = new Connection({ onHello: greet, onMessage: take, onWords: tell });
const controls = new Controls(connection, choice);

function greet(hello) {
  const same = store !== null && ["session", "latents", "channels", "bin_width"].every((key) => store.hello[key] === hello[key]);
  if (same) store.hello = hello;
  else store = new Store(hello);
  controls.greet(hello);
  evkf.store = store;
}

function take(data) {
  const message = decode(data);
  evkf.messages += 1;
  const bins = store.take(message);
  if (message.header.report) {
    connection.heed(message.header.report);
    controls.heed(message.header.report);
    tellState(message.header.report);
  }
  return bins && message.arrays.time.length > 0;
}

function tell(text, tone, needsToken) {
  const element = document.getElementById("connection");
  if (element.textContent !== text) element.textContent = text;
  element.title = text;
  element.dataset.tone = tone;
  document.getElementById("token-form").hidden = !needsToken;
  // What is still shown is old.
  document.body.classList.toggle("away", connection.trouble !== null);
}

/** For tests and measurements: what was drawn, and how often. */
const evkf = {
  fps: 0,
  messages: 0,
  store: null,
  panels: drawn,
  /** Paints of every figure, as Bokeh tells of them: what was set need not have been painted. */
  get paints() {
    return allFigures().map((figure) => figure.paints);
  },
  get frames() {
    return Math.max(...evkf.paints);
  },
};
globalThis.evkf = evkf;

let last = 0;
let turn = 0;
let counted = { at: performance.now(), frames: 0 };

function draw(now) {
  requestAnimationFrame(draw);
  if (now - last < FRAME_MS - SLACK_MS) return;
  if (now - counted.at > 1000) {
    evkf.fps = ((evkf.frames - counted.frames) * 1000) / (now - counted.at);
    counted = { at: now, frames: evkf.frames };
  }
  const changed = choice.changed(draw);
  if (store === null || store.time.total === 0 || (choice.paused && !changed)) return;
  // Where the machine is slow, the two bitmaps take turns.
  turn += 1;
  const waits = evkf.fps < SLOW_FPS ? [drawn.raster, drawn.rates][turn % 2] : null;
  for (const each of panels) {
    if (each.panel === waits) continue;
    const due = `${each.panel.due(store)} ${choice.version}`;
    if (due === each.due) continue;
    each.due = due;
    each.panel.draw(store);
    const time = each.panel.newest ? each.panel.newest(store) : store.now;
    if (Number.isFinite(time)) each.element.dataset.time = String(time);
  }
  last = now;
}

await Promise.all(allFigures().map(({ ready }) => ready));
connection.open();
requestAnimationFrame(draw);
