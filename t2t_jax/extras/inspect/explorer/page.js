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
const NAMES = { encoder: "encoder self-attention", decoder: "decoder self-attention", cross: "cross-attention" };
const HEAD_COLORS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"];
const state = { attention: "cross", layer: 0, head: 0, words: false, heads: "one", target: 0 };

// Weights as matrix[query][key], from 0 to 1.
for (const one of Object.values(data.attention)) {
  const flat = bytes(one.weights), [layers, heads, queries, keys] = one.shape;
  const row = (at) => Array.from(flat.subarray(at, at + keys), (x) => x / 255);
  const matrix = (at) => Array.from({ length: queries }, (_, q) => row(at + q * keys));
  one.matrices = Array.from({ length: layers }, (_, l) =>
    Array.from({ length: heads }, (_, h) => matrix((l * heads + h) * queries * keys)));
}

// The rows and columns of an attention: what is written there, and the subwords that belong to it.
function units(attention, side) {
  const ofSource = attention === "encoder" || (attention === "cross" && side === "key");
  let pieces = ofSource ? data.source : data.target, words = ofSource ? data.sourceWords : data.targetWords;
  if (attention === "decoder") {
    pieces = ["<s>", ...pieces.slice(0, -1)];
    words = [-1, ...words.slice(0, -1)];
  }
  const made = [];
  pieces.forEach((piece, i) => {
    const last = made[made.length - 1];
    if (state.words && last && words[i] >= 0 && last.word === words[i]) {
      last.text += piece.replaceAll("▁", " ");
      last.members.push(i);
    } else made.push({ text: shown(piece), word: words[i], members: [i] });
  });
  return made;
}

// The weight of words is the sum over the subwords attended to, and the mean over those that attend.
function grouped(matrix, queries, keys) {
  return queries.map((q) => keys.map((k) => {
    const sums = q.members.map((i) => k.members.reduce((sum, j) => sum + matrix[i][j], 0));
    return sums.reduce((a, b) => a + b, 0) / sums.length;
  }));
}

function matrixOf(attention, layer, head) {
  const heads = data.attention[attention].matrices[layer];
  const queries = units(attention, "query"), keys = units(attention, "key");
  const all = (state.heads === "one" ? [heads[head]] : heads).map((m) => grouped(m, queries, keys));
  if (all.length === 1) return all[0];
  const combine = state.heads === "max" ? (xs) => Math.max(...xs) : (xs) => xs.reduce((a, b) => a + b, 0) / xs.length;
  return queries.map((_, q) => keys.map((_, k) => combine(all.map((m) => m[q][k]))));
}

function paint(canvas, matrix) {
  canvas.width = matrix[0].length;
  canvas.height = matrix.length;
  const context = canvas.getContext("2d");
  matrix.forEach((row, y) => row.forEach((weight, x) => {
    context.fillStyle = color(weight);
    context.fillRect(x, y, 1, 1);
  }));
}

function drawGrids() {
  $("grids").replaceChildren();
  for (const [name, one] of Object.entries(data.attention)) {
    const [layers, heads] = one.shape, columns = state.heads === "one" ? heads : 1, table = element("table");
    const box = element("div", { class: "grid", style: `--heads: ${columns}` });
    box.append(element("h4", {}, NAMES[name]), table);
    const top = table.insertRow();
    top.append(element("th"), ...Array.from({ length: columns }, (_, h) =>
      element("th", { scope: "col" }, columns > 1 || heads === 1 ? `head ${h + 1}` : `${state.heads} of heads`)));
    for (let layer = 0; layer < layers; layer++) {
      const row = table.insertRow();
      row.append(element("th", { scope: "row" }, `layer ${layer + 1}`));
      for (let head = 0; head < columns; head++) {
        const kind = state.heads === "one" ? one.kinds[layer][head] : "";
        const button = element("button", { class: "map", "data-attention": name, "data-layer": layer, "data-head": head, tabindex: layer || head ? -1 : 0,
          "aria-label": `${NAMES[name]}, layer ${layer + 1}, ${kind ? `head ${head + 1}, ${kind}` : state.heads}` });
        const canvas = element("canvas");
        paint(canvas, matrixOf(name, layer, head));
        button.append(canvas, element("span", {}, kind));
        button.addEventListener("click", () => choose(name, layer, head));
        row.insertCell().append(button);
      }
    }
    $("grids").append(box);
  }
}

function choose(attention, layer, head) {
  Object.assign(state, { attention, layer, head });
  drawDetail();
}

function title() {
  const one = data.attention[state.attention], { layer, head } = state;
  const start = `${NAMES[state.attention]}, layer ${layer + 1}`;
  if (state.heads !== "one") return `${start}: ${state.heads === "mean" ? "mean" : "maximum"} of its heads`;
  return `${start}, head ${head + 1}: ${one.kinds[layer][head]}, entropy ${one.entropy[layer][head].toFixed(2)} nats, ` +
    `${Math.round(100 * one.relativeEntropy[layer][head])}% of the greatest`;
}

function drawDetail() {
  const { attention, layer, head } = state;
  for (const button of document.querySelectorAll("button.map")) {
    const { attention: a, layer: l, head: h } = button.dataset;
    const chosen = a === attention && +l === layer && +h === head;
    button.setAttribute("aria-pressed", chosen);
  }
  $("detail-title").textContent = title();
  const queries = units(attention, "query"), keys = units(attention, "key"), matrix = matrixOf(attention, layer, head);
  drawLines(queries, keys, matrix);
  drawMap(queries, keys, matrix);
}

function tell(queries, keys, matrix, query) {
  const order = keys.map((_, k) => k).sort((a, b) => matrix[query][b] - matrix[query][a]).slice(0, 5);
  const words = order.map((k) => `${keys[k].text} ${matrix[query][k].toFixed(3)}`);
  $("value").textContent = `${queries[query].text} looks at ${words.join(", ")}`;
}

function drawLines(queries, keys, matrix) {
  const svg = $("lines"), step = 24, width = 420, left = 130, right = 290;
  svg.replaceChildren();
  frame(svg, width, step * Math.max(queries.length, keys.length) + 10);
  const y = (at) => at * step + 18, hue = HEAD_COLORS[state.head % HEAD_COLORS.length];
  const lines = drawn("g");
  svg.append(lines);
  const connect = (chosen) => {
    lines.replaceChildren();
    matrix.forEach((row, q) => row.forEach((weight, k) => {
      if (weight < 0.02 || (chosen !== null && chosen !== q)) return;
      lines.append(drawn("line", { x1: left, y1: y(q) - 4, x2: right, y2: y(k) - 4, stroke: hue,
        "stroke-opacity": weight.toFixed(3), "stroke-width": 1 + 4 * weight }));
    }));
  };
  connect(null);
  queries.forEach((unit, q) => {
    const word = drawn("text", { x: left - 8, y: y(q), "text-anchor": "end", class: "query", tabindex: 0, "data-query": q }, unit.text);
    const enter = () => { connect(q); word.classList.add("chosen"); tell(queries, keys, matrix, q); };
    const leave = () => { connect(null); word.classList.remove("chosen"); };
    word.addEventListener("mouseenter", enter);
    word.addEventListener("mouseleave", leave);
    word.addEventListener("focus", enter);
    word.addEventListener("blur", leave);
    svg.append(word);
  });
  keys.forEach((unit, k) => svg.append(drawn("text", { x: right + 8, y: y(k), class: "key" }, unit.text)));
}

function drawTarget() {
  const queries = units("cross", "query");
  state.target = Math.min(state.target, queries.length - 1);
  $("target").replaceChildren(...queries.map((unit, q) => {
    const button = element("button", { "aria-pressed": q === state.target, "data-target": q }, unit.text);
    button.addEventListener("click", () => { state.target = q; drawTarget(); $("target").children[q].focus(); });
    return button;
  }));
  tabulate($("layers"), "cross", queries[state.target].members);
  // The word is read one place after it is predicted; the last one, the end, is not read.
  const read = queries[state.target].members.map((i) => i + 1).filter((i) => i < data.target.length);
  tabulate($("before"), "decoder", read);
}

// A table of what some subwords look at in each layer of an attention.
function tabulate(table, attention, members) {
  const keys = units(attention, "key");
  table.replaceChildren();
  if (!members.length) return;
  const top = table.insertRow();
  top.append(element("th", {}, NAMES[attention]), ...keys.map((unit) => element("th", { scope: "col" }, unit.text)));
  data.attention[attention].matrices.forEach((heads, layer) => {
    const each = heads.map((m) => grouped(m, [{ members }], keys)[0]), row = table.insertRow();
    row.append(element("th", { scope: "row" }, `layer ${layer + 1}`));
    keys.forEach((_, k) => {
      const weights = each.map((m) => m[k]), mean = weights.reduce((a, b) => a + b, 0) / weights.length;
      const weight = state.heads === "max" ? Math.max(...weights) : mean;
      const cell = element("td", { "data-layer": layer, "data-key": k }, weight.toFixed(2));
      cell.style.background = color(weight);
      cell.style.color = weight > 0.55 ? "#111" : "#fff";
      row.append(cell);
    });
  });
}

// A hypothesis is a row of the tree where it ends; those that share their beginning share its nodes.
function drawTree() {
  const { nodes, winner, beamSize, alpha, offset } = data.search, svg = $("tree"), wide = 96, high = 26;
  const children = nodes.map(() => []), roots = [];
  nodes.forEach((node, i) => (node.parent < 0 ? roots : children[node.parent]).push(i));
  const won = new Set();
  for (let i = winner; i >= 0; i = nodes[i].parent) won.add(i);
  let rows = 0;
  const place = nodes.map(() => 0);
  const settle = (i) => {  // by a list, as a sentence may be longer than the stack of calls
    const open = [[i, 0]];
    while (open.length) {
      const top = open[open.length - 1], [node, next] = top;
      const below = [...children[node]].sort((a, b) => won.has(b) - won.has(a) || nodes[b].logProb - nodes[a].logProb);
      if (next < below.length) { top[1] += 1; open.push([below[next], 0]); continue; }
      place[node] = below.length ? place[below[0]] : rows++;
      open.pop();
    }
  };
  roots.sort((a, b) => won.has(b) - won.has(a) || nodes[b].logProb - nodes[a].logProb).forEach(settle);
  const deepest = Math.max(...nodes.map((node) => node.length));
  svg.setAttribute("width", deepest * wide + 20);
  svg.setAttribute("height", rows * high + 10);
  const x = (i) => (nodes[i].length - 1) * wide + 12, y = (i) => place[i] * high + 20;
  const paths = drawn("g");
  svg.append(paths);
  nodes.forEach((node, i) => {
    if (node.parent >= 0) {
      const from = x(node.parent) + wide - 22, to = x(i) - 4, y1 = y(node.parent) - 4, y2 = y(i) - 4;
      const middle = (from + to) / 2;
      paths.append(drawn("path", { d: `M${from} ${y1} C${middle} ${y1} ${middle} ${y2} ${to} ${y2}`, class: won.has(i) ? "won" : "" }));
    }
    const text = drawn("text", { x: x(i), y: y(i), tabindex: 0, class: won.has(i) ? "won" : node.fate }, shown(node.piece).slice(0, 11));
    const score = node.score === null ? "" : `, score ${node.score.toFixed(3)}`;
    const said = `${node.text || "(nothing)"}: log-probability ${node.logProb.toFixed(3)}${score}; ${node.fate}` +
      (node.fate === "dropped" ? ` after ${node.length} tokens` : "");
    text.append(drawn("title", {}, said));
    for (const event of ["mouseenter", "focus"]) text.addEventListener(event, () => { $("node").textContent = said; });
    svg.append(text);
  });
  $("search-hint").textContent = `Beam search that keeps ${beamSize} ${beamSize === 1 ? "hypothesis" : "hypotheses"}: ` +
    "orange won, blue ended, grey was dropped. Point at a word for its log-probability. The search stops " +
    (offset ? "when no hypothesis under way could still get a better score than the best that has ended" :
      "when as many hypotheses have ended as it keeps, and none under way has a better score so far") +
    ", or at the longest output.";
  drawEnded(nodes, winner, alpha, offset);
}

function drawEnded(nodes, winner, alpha, offset) {
  const table = $("ended");
  const scored = nodes.map((node, i) => [node, i]).filter(([node]) => node.score !== null);
  scored.sort(([a], [b]) => b.score - a.score);
  const names = ["hypothesis", "", "log-probability", "tokens", `penalty ((${offset} + tokens) / ${offset + 1})^${alpha}`, "score"];
  table.insertRow().append(...names.map((name) => element("th", { scope: "col" }, name)));
  for (const [node, i] of scored) {
    const row = table.insertRow(), penalty = ((offset + node.length) / (offset + 1)) ** alpha;
    if (i === winner) row.className = "winner";
    const what = i === winner ? "won" : node.fate === "ended" ? "ended" : "live at the end";
    row.append(...[node.text, what, node.logProb.toFixed(3), node.length, penalty.toFixed(3), node.score.toFixed(3)]
      .map((text) => element("td", {}, String(text))));
  }
}

function drawInput() {
  const { embedding, position, kind, products } = data.input;
  for (const [name, table] of [["embeddings", embedding], [`positions: ${kind}`, position]]) {
    if (!table) continue;
    const flat = bytes(table.values), [rows, columns] = table.shape, canvas = element("canvas"), box = element("div");
    paint(canvas, Array.from({ length: rows }, (_, r) => Array.from(flat.subarray(r * columns, (r + 1) * columns), (v) => v / 255)));
    canvas.style.height = `${Math.max(60, 12 * rows)}px`;
    box.append(element("h4", {}, `${name}, from ${(-table.largest).toFixed(2)} to ${table.largest.toFixed(2)}`), canvas);
    $("input").append(box);
  }
  if (!position || products.length < 2) return;
  const svg = drawn("svg", { viewBox: "0 0 640 170", role: "img", "aria-label": "Dot product of positions by distance" });
  const low = Math.min(...products, 0), high = Math.max(...products);
  const points = products.map((value, d) => `${30 + (590 * d) / (products.length - 1)},${145 - (120 * (value - low)) / (high - low || 1)}`);
  svg.append(drawn("polyline", { points: points.join(" "), fill: "none", stroke: HEAD_COLORS[0], "stroke-width": 2 }));
  products.forEach((value, d) => {
    const [cx, cy] = points[d].split(","), dot = drawn("circle", { cx, cy, r: 4, fill: HEAD_COLORS[0] });
    dot.append(drawn("title", {}, `distance ${d}: ${value.toFixed(3)}`));
    svg.append(dot);
    if (products.length < 30 || d % 5 === 0) svg.append(drawn("text", { x: cx, y: 164, "text-anchor": "middle" }, String(d)));
  });
  const box = element("div");
  box.append(element("h4", {}, "dot product of position 0 with the others, by distance"), svg);
  $("input").append(box);
}

function drawAll() {
  drawGrids();
  drawDetail();
  drawTarget();
}

// Arrow keys move between the maps of a grid.
$("grids").addEventListener("keydown", (event) => {
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const { attention, layer, head } = event.target.dataset;
  if (!move || attention === undefined) return;
  const next = document.querySelector(`button.map[data-attention="${attention}"][data-layer="${+layer + move[0]}"][data-head="${+head + move[1]}"]`);
  if (!next) return;
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
  event.preventDefault();
});
$("words").addEventListener("change", (event) => { state.words = event.target.checked; drawAll(); });
$("heads").addEventListener("change", (event) => { state.heads = event.target.value; state.head = 0; drawAll(); });

$("sentence").textContent = `${data.text} → ${data.translation}`;
paint($("legend"), [Array.from({ length: 120 }, (_, i) => i / 119)]);
$("legend").style.width = "120px";
$("legend").style.height = "12px";
state.layer = data.attention.cross.shape[0] - 1;
drawAll();
drawTree();
drawInput();
