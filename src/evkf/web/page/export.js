// Downloads: the view as a picture or a drawing, and files of the session.

import { allFigures, colour } from "./figures.js";

const SVG = "http://www.w3.org/2000/svg";

/** Have the browser keep something as a file. */
export function keep(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Panels, texts and figures of the view, each where it stands. */
function layout() {
  const box = document.querySelector("main").getBoundingClientRect();
  const place = (element) => {
    const { left, top, width, height } = element.getBoundingClientRect();
    return { x: left - box.left, y: top - box.top, width, height };
  };
  const visible = (element) => element.offsetParent !== null;
  const panels = [...document.querySelectorAll(".panel")].filter(visible).map(place);
  const texts = [];
  for (const element of document.querySelectorAll(".panel h2, .panel figcaption, .panel .note, #words, .facts div, .chip, .key li, .scale span")) {
    if (!visible(element)) continue;
    const style = getComputedStyle(element);
    const { x, y, height } = place(element);
    const size = parseFloat(style.fontSize);
    const lines = element.innerText.split("\n").map((line) => line.trim()).filter(Boolean);
    const rows = element.matches(".facts div, .chip") ? [lines.join("  ")] : lines;
    rows.forEach((text, row) => {
      const line = height / rows.length;
      texts.push({ x, y: y + line * row + (line + 0.7 * size) / 2, text, size, weight: style.fontWeight, fill: style.color });
    });
  }
  const figures = allFigures().filter(({ element }) => visible(element)).map((figure) => ({ figure, ...place(figure.element) }));
  return { width: box.width, height: box.height, panels, texts, figures };
}

export async function toPng() {
  const { width, height, panels, texts, figures } = layout();
  const scale = Math.max(2, devicePixelRatio);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.fillStyle = colour("ground");
  context.fillRect(0, 0, width, height);
  context.fillStyle = colour("panel");
  for (const panel of panels) context.fillRect(panel.x, panel.y, panel.width, panel.height);
  for (const { figure, x, y, width: wide, height: tall } of figures) {
    context.drawImage(figure.view.export("png").canvas, x, y, wide, tall);
  }
  const family = getComputedStyle(document.documentElement).fontFamily;
  for (const { x, y, text, size, weight, fill } of texts) {
    context.font = `${weight} ${size}px ${family}`;
    context.fillStyle = fill;
    context.fillText(text, x, y);
  }
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

export function toSvg() {
  const { width, height, panels, texts, figures } = layout();
  const make = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    parent?.append(element);
    return element;
  };
  const family = getComputedStyle(document.documentElement).fontFamily;
  const root = make("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": family });
  make("rect", { width, height, fill: colour("ground") }, root);
  for (const panel of panels) make("rect", { ...panel, fill: colour("panel") }, root);
  const reader = new DOMParser();
  figures.forEach(({ figure, x, y, width: wide, height: tall }, index) => {
    // Names within a drawing are made its own: those of another must not be meant.
    const text = figure.view.export("svg", false).ctx.get_serialized_svg(true);
    const own = text.replace(/\bid="([^"]+)"/g, `id="f${index}-$1"`).replace(/url\(#([^)]+)\)/g, `url(#f${index}-$1)`);
    const drawn = reader.parseFromString(own.replaceAll('href="#', `href="#f${index}-`), "image/svg+xml").documentElement;
    const inner = make("svg", { x, y, width: wide, height: tall, viewBox: `0 0 ${wide} ${tall}` }, root);
    inner.append(...document.importNode(drawn, true).childNodes);
  });
  for (const { x, y, text, size, weight, fill } of texts) {
    make("text", { x, y, "font-size": size, "font-weight": weight, fill }, root).textContent = text;
  }
  return new Blob([new XMLSerializer().serializeToString(root)], { type: "image/svg+xml" });
}
