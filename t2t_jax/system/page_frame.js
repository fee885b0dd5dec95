"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

function withAttributes(made, attributes, text) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

const element = (name, attributes = {}, text = "") => withAttributes(document.createElement(name), attributes, text);
const drawn = (name, attributes = {}, text = "") =>
  withAttributes(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, text);
const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// Points of cividis (Nuñez et al. 2018), which colour-blind people read as others do.
const CIVIDIS = [[0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115], [138, 134, 120],
  [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56]];

function color(share) {
  const at = Math.min(1, Math.max(0, share)) * (CIVIDIS.length - 1), low = Math.min(Math.floor(at), CIVIDIS.length - 2);
  const mixed = CIVIDIS[low].map((c, i) => Math.round(c + (CIVIDIS[low + 1][i] - c) * (at - low)));
  return `rgb(${mixed.join(",")})`;
}

const shown = (piece) => piece.replaceAll("▁", " ").trim() || piece;

function frame(svg, width, height) {
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
}

// A map of weights in the element `map`, whose cells the element `value` reads out.
function drawMap(queries, keys, matrix) {
  const svg = $("map"), size = 24, left = 110, top = 90;
  svg.replaceChildren();
  frame(svg, left + size * keys.length + 60, top + size * queries.length + 5);
  keys.forEach((unit, k) => {
    const x = left + (k + 0.6) * size;
    svg.append(drawn("text", { x, y: top - 6, transform: `rotate(-60 ${x} ${top - 6})` }, unit.text));
  });
  matrix.forEach((row, q) => {
    svg.append(drawn("text", { x: left - 6, y: top + (q + 0.7) * size, "text-anchor": "end" }, queries[q].text));
    row.forEach((weight, k) => {
      const cell = drawn("rect", { x: left + k * size, y: top + q * size, width: size - 1, height: size - 1, rx: 2,
        fill: color(weight), "data-query": q, "data-key": k, "data-value": weight.toFixed(4) });
      cell.append(drawn("title", {}, `${queries[q].text} → ${keys[k].text}: ${weight.toFixed(3)}`));
      cell.addEventListener("mouseenter", () => {
        $("value").textContent = `${queries[q].text} → ${keys[k].text}: ${weight.toFixed(3)}`;
      });
      svg.append(cell);
    });
  });
}
