// The view as a picture or a drawing: figures as Bokeh draws them, and all text where it stands.

import { allFigures, colour } from "./figures.js";
import { shadeOf } from "./time.js";

const SVG = "http://www.w3.org/2000/svg";
const TOP = 26; // pixels of the line that says what it is
const SHADES = 32;
const SHARP = 2; // pixels of a picture for one of the screen

/** Have the browser keep something as a file. */
export function keep(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const visible = (element) => element.offsetParent !== null;

/** Lines of text as they are broken on the screen. */
function* linesOf(node) {
  const range = document.createRange();
  let line = null;
  for (const { 0: word, index } of node.data.matchAll(/\S+/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.length);
    const { left, top, bottom } = range.getBoundingClientRect();
    if (line && Math.abs(line.top - top) < 2) line.text += ` ${word}`;
    else {
      if (line) yield line;
      line = { text: word, left, top, bottom };
    }
  }
  if (line) yield line;
}

function textsOf(main, place) {
  const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const parent = walker.currentNode.parentElement;
    if (!visible(parent) || parent.closest("select, kbd")) continue;
    const { fontSize, fontWeight: weight, color: fill } = getComputedStyle(parent);
    const size = parseFloat(fontSize);
    for (const { text, left, top, bottom } of linesOf(walker.currentNode)) {
      const at = place({ left, top, right: left, bottom });
      found.push({ x: at.x, y: at.y + at.height / 2 + 0.36 * size, text, size, weight, fill });
    }
  }
  return found;
}

/** Rectangles that mean something: panels, and colours that are explained. */
function boxesOf(main, place) {
  const boxes = [...main.querySelectorAll(".panel")].map((panel) => ({ ...place(panel.getBoundingClientRect()), fill: colour("panel") }));
  for (const each of [...main.querySelectorAll(".swatch")].filter(visible)) {
    const fill = getComputedStyle(each).backgroundColor;
    const { x, y, width, height } = place(each.getBoundingClientRect());
    boxes.push({ x, y, width, height, fill: colour("line") });
    boxes.push({ x: x + 1, y: y + 1, width: width - 2, height: height - 2, fill });
  }
  for (const chip of [...main.querySelectorAll('.chip[aria-pressed="true"]')]) {
    boxes.push({ ...place(chip.getBoundingClientRect()), width: 4, fill: getComputedStyle(chip).borderLeftColor });
  }
  const bar = place(main.querySelector(".bar").getBoundingClientRect());
  for (let index = 0; index < SHADES; index += 1) {
    const shade = shadeOf((index + 0.5) / SHADES);
    const fill = `rgb(${shade & 255}, ${(shade >> 8) & 255}, ${(shade >> 16) & 255})`;
    const height = bar.height / SHADES;
    boxes.push({ ...bar, y: bar.y + bar.height - (index + 1) * height, height: height + 0.5, fill });
  }
  return boxes;
}

/** All of the view, each part where it stands. */
function layout(title) {
  const main = document.querySelector("main");
  const outer = main.getBoundingClientRect();
  const place = ({ left, top, right, bottom }) => ({
    x: left - outer.left,
    y: top - outer.top + TOP,
    width: right - left,
    height: bottom - top,
  });
  const figures = allFigures()
    .filter(({ element }) => visible(element))
    .map((figure) => ({ figure, ...place(figure.element.getBoundingClientRect()) }));
  const texts = textsOf(main, place);
  texts.push({ x: 8, y: 18, text: title, size: 14, weight: 600, fill: colour("ink") });
  return { width: outer.width, height: outer.height + TOP, boxes: boxesOf(main, place), texts, figures };
}

export function toSvg(title) {
  const { width, height, boxes, texts, figures } = layout(title);
  const make = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent?.append(element);
    return element;
  };
  const family = getComputedStyle(document.documentElement).fontFamily;
  const root = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "font-family": family });
  make("rect", { width, height, fill: colour("ground") }, root);
  for (const box of boxes) make("rect", box, root);
  const reader = new DOMParser();
  figures.forEach(({ figure, x, y, width: wide, height: tall }, index) => {
    // Names within a drawing are made its own: those of another must not be meant.
    const text = figure.view.export("svg", false).ctx.get_serialized_svg(true);
    const own = text
      .replace(/\bid="([^"]+)"/g, `id="f${index}-$1"`)
      .replace(/url\(#([^)]+)\)/g, `url(#f${index}-$1)`)
      .replaceAll('href="#', `href="#f${index}-`);
    const drawn = reader.parseFromString(own, "image/svg+xml").documentElement;
    const inner = make("svg", { x, y, width: wide, height: tall, viewBox: `0 0 ${wide} ${tall}` }, root);
    inner.append(...document.importNode(drawn, true).childNodes);
  });
  for (const { x, y, text, size, weight, fill } of texts) {
    make("text", { x, y, "font-size": size, "font-weight": weight, fill }, root).textContent = text;
  }
  return new Blob([new XMLSerializer().serializeToString(root)], { type: "image/svg+xml" });
}

export async function toPng(title) {
  const picture = new Image();
  const address = URL.createObjectURL(toSvg(title));
  try {
    picture.src = address;
    await picture.decode();
    const canvas = document.createElement("canvas");
    const scale = Math.max(SHARP, devicePixelRatio);
    [canvas.width, canvas.height] = [picture.width * scale, picture.height * scale];
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => {
      canvas.toBlob(resolve, "image/png");
    });
  } finally {
    URL.revokeObjectURL(address);
  }
}
