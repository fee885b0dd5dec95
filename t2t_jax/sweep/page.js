// Colours that colour-blind people tell apart (Okabe and Ito 2008); further rows have them again, with dashes.
const COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#8C6BB1", "#7F7F7F"];
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "1 6"];
const WIDTH = 960, HEIGHT = 420, LEFT = 80, RIGHT = 12, TOP = 12, BOTTOM = 44;
const FIRST_ROWS = 12;  // that are chosen when the page is opened
const isFigure = (text) => /^[+-]?\.?\d/.test(text);
const figuresIn = data.heads.map((_, c) => {
  const cells = data.rows.map((row) => row[c]).filter((cell) => cell);
  return c > 0 && cells.length > 0 && cells.every(isFigure);
});
const state = { column: -1, sign: 1, chosen: new Set([data.variants.indexOf(data.base), ...data.variants.keys()].slice(0, FIRST_ROWS)), drawn: [] };

function stroke(row) {
  return { stroke: COLORS[row % COLORS.length], "stroke-dasharray": DASHES[Math.floor(row / COLORS.length) % DASHES.length] };
}

// Blank cells come last in either direction.
function order() {
  const rows = [...data.rows.keys()], { column, sign } = state;
  if (column < 0) return rows;
  const value = (row) => data.rows[row][column];
  const number = (text) => parseFloat(text.replaceAll(",", ""));
  const compare = figuresIn[column] ? (a, b) => number(a) - number(b) : (a, b) => a.localeCompare(b, "en", { numeric: true });
  return rows.sort((a, b) => (!value(a) - !value(b)) || sign * compare(value(a), value(b)) || a - b);
}

function drawHead() {
  const top = element("tr");
  data.heads.forEach((head, c) => {
    const cell = element("th", { scope: "col", class: figuresIn[c] ? "figure" : "" }), button = element("button", { "data-column": c }, head);
    if (c === state.column) cell.setAttribute("aria-sort", state.sign > 0 ? "ascending" : "descending");
    button.addEventListener("click", () => {
      state.sign = c === state.column ? -state.sign : 1;
      state.column = c;
      drawTable();
      document.querySelector(`#table button[data-column="${c}"]`).focus();
    });
    cell.append(button);
    top.append(cell);
  });
  $("table").tHead.replaceChildren(top);
}

function chooser(row) {
  const label = element("label"), box = element("input", { type: "checkbox", "data-variant": row });
  const swatch = drawn("svg", { width: 26, height: 10, "aria-hidden": "true" });
  swatch.append(drawn("line", { x1: 0, x2: 26, y1: 5, y2: 5, "stroke-width": 3, ...stroke(row) }));
  box.checked = state.chosen.has(row);
  box.addEventListener("change", () => {
    if (box.checked) state.chosen.add(row); else state.chosen.delete(row);
    drawCurves();
  });
  label.append(box, swatch, data.variants[row]);
  return label;
}

function drawTable() {
  drawHead();
  $("table").tBodies[0].replaceChildren(...order().map((row) => {
    const made = element("tr", { class: data.variants[row] === data.base ? "base" : "" });
    data.rows[row].forEach((text, c) => {
      const cell = element("td", { class: figuresIn[c] ? "figure" : "" }, c ? text : "");
      if (!c) cell.append(chooser(row));
      made.append(cell);
    });
    return made;
  }));
}

// A text in which code stands between backticks.
function withCode(name, text) {
  const made = element(name);
  made.append(...text.split("`").map((piece, i) => (i % 2 ? element("code", {}, piece) : piece)));
  return made;
}

function fill(table, heads, rows) {
  const top = element("tr");
  top.append(...heads.map((head) => element("th", { scope: "col" }, head)));
  table.replaceChildren(top, ...rows.map((cells) => {
    const row = element("tr");
    row.append(...cells.map((text) => element("td", {}, String(text))));
    return row;
  }));
}

// The mean of the values so far, in which older ones count less and less.
function smoothed(values, weight) {
  let sum = 0, shares = 0;
  return values.map((value) => {
    sum = weight * sum + (1 - weight) * value;
    shares = weight * shares + (1 - weight);
    return sum / shares;
  });
}

// Lines to draw: their row, name and points [step, value, half of the interval].
function lines() {
  const figure = data.figures[$("figure").value], weight = Number($("smoothing").value), found = [];
  for (const row of figure ? [...state.chosen].sort((a, b) => a - b) : []) {
    const seeds = figure.lines.filter((line) => line.variant === row)
      .map((line) => ({ name: `${data.variants[row]}, seed ${line.seed}`, steps: data.axes[line.axis], values: smoothed(line.values, weight) }));
    if ($("seeds").value === "each") {
      for (const { name, steps, values } of seeds) found.push({ row, name, points: steps.map((step, i) => [step, values[i], 0]) });
    } else if (seeds.length) found.push({ row, name: data.variants[row], points: meanOf(seeds) });
  }
  return found;
}

// The mean over the seeds that have a step, with its interval by Student's t.
function meanOf(seeds) {
  const at = new Map();
  for (const { steps, values } of seeds) {
    steps.forEach((step, i) => (at.get(step) ?? at.set(step, []).get(step)).push(values[i]));
  }
  return [...at.entries()].sort(([a], [b]) => a - b).map(([step, values]) => {
    const n = values.length, mean = values.reduce((a, b) => a + b, 0) / n;
    const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
    return [step, mean, n > 1 ? data.student[n - 2] * Math.sqrt(squares / (n - 1) / n) : 0];
  });
}

function ticks(low, high, logarithmic) {
  if (logarithmic) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      found.push(...[1, 2, 5].map((digit) => digit * 10 ** power).filter((tick) => tick >= low && tick <= high));
    }
    const spread = Math.ceil(found.length / 9);
    if (found.length > 2) return found.filter((_, i) => i % spread === 0);
  }
  const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
  const size = power * [1, 2, 5, 10].find((digit) => digit * power >= rough), first = Math.ceil(low / size);
  return Array.from({ length: Math.floor(high / size) - first + 1 }, (_, i) => (first + i) * size);
}

const written = (value) => (Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3) ? value.toExponential(1)
  : Number(value.toPrecision(5)).toLocaleString("en", { maximumSignificantDigits: 5 }));

// A function that gives the place of a value, with its range and its ticks.
function scaleOf(values, from, to, logarithmic) {
  let low = Math.min(...values.map(([least]) => least)), high = Math.max(...values.map(([, most]) => most));
  if (low === high) [low, high] = [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)];
  if (logarithmic && low <= 0) low = high / 1e3;
  const f = logarithmic ? Math.log : (value) => value;
  const place = (value) => from + ((to - from) * (f(Math.max(value, logarithmic ? low / 1e3 : -Infinity)) - f(low))) / (f(high) - f(low));
  return { place, ticks: ticks(low, high, logarithmic) };
}

function drawAxes(svg, x, y) {
  for (const tick of x.ticks) {
    const at = x.place(tick);
    svg.append(drawn("line", { x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM, class: "axis" }),
      drawn("text", { x: at, y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, written(tick)));
  }
  for (const tick of y.ticks) {
    const at = y.place(tick);
    svg.append(drawn("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at, class: "axis" }),
      drawn("text", { x: LEFT - 8, y: at + 4, "text-anchor": "end" }, written(tick)));
  }
  svg.append(drawn("text", { x: (WIDTH + LEFT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "step"));
}

function drawCurves() {
  const svg = $("plot"), logX = $("log-x").checked, logY = $("log-y").checked;
  const fits = ([step, value]) => (!logX || step > 0) && (!logY || value > 0);
  state.drawn = lines().map((line) => ({ ...line, points: line.points.filter(fits) })).filter((line) => line.points.length);
  $("smoothed").textContent = $("smoothing").value;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  $("pointed").textContent = state.drawn.length ? "Point at a curve to read it." : "Nothing is drawn: choose rows that have this figure.";
  if (!state.drawn.length) return;
  const range = (i) => state.drawn.map((line) => line.points.map((point) => point[i]))
    .map((values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]));
  const x = scaleOf(range(0), LEFT, WIDTH - RIGHT, logX), y = scaleOf(range(1), HEIGHT - BOTTOM, TOP, logY);
  drawAxes(svg, x, y);
  const clip = drawn("clipPath", { id: "inside" });
  clip.append(drawn("rect", { x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT, height: HEIGHT - TOP - BOTTOM }));
  svg.append(clip);
  for (const line of state.drawn) {
    line.places = line.points.map(([step, value]) => [x.place(step), y.place(value)]);
    const text = (points) => points.map((point) => point.map((place) => place.toFixed(1)).join(",")).join(" ");
    if (line.points.some(([, , half]) => half)) {
      const edge = (sign) => line.points.map(([step, value, half]) => [x.place(step), y.place(value + sign * half)]);
      svg.append(drawn("polygon", { points: text([...edge(1), ...edge(-1).reverse()]), class: "band",
        fill: stroke(line.row).stroke, "clip-path": "url(#inside)", "data-name": line.name }));
    }
    svg.append(line.places.length > 1
      ? drawn("polyline", { points: text(line.places), class: "curve", "data-name": line.name, ...stroke(line.row) })
      : drawn("circle", { cx: line.places[0][0], cy: line.places[0][1], r: 4, class: "curve", "data-name": line.name, ...stroke(line.row) }));
  }
}

function tell(event) {
  const box = $("plot").getBoundingClientRect(), scale = WIDTH / box.width;
  const [px, py] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  let best = null, least = Infinity;
  for (const line of state.drawn) {
    line.places.forEach(([x, y], i) => {
      const distance = (x - px) ** 2 + (y - py) ** 2;
      if (distance < least) [best, least] = [[line.name, line.points[i]], distance];
    });
  }
  if (!best) return;
  const [name, [step, value, half]] = best;
  const interval = half ? `, 95% interval ${(value - half).toPrecision(5)} to ${(value + half).toPrecision(5)}` : "";
  $("pointed").textContent = `${name}, step ${Math.round(step).toLocaleString("en")}: ${value.toPrecision(5)}${interval}`;
}

function drawPair() {
  const [left, right] = ["left", "right"].map((side) => Number($(side).value));
  const differing = Object.entries(data.fields).filter(([, values]) => values[left] !== values[right]);
  fill($("differences"), ["field", data.variants[left], data.variants[right]],
    differing.map(([path, values]) => [path, values[left], values[right]]));
  const pair = [left, right].map((row) => data.samples[row]), known = pair.filter((one) => one);
  const lists = [...new Set(known.map((one) => one.references))].map((number) => data.references[number]);
  const heads = [...lists.map(() => "reference"), ...[left, right].map((row, side) => pair[side]
    ? `${data.variants[row]}, seed ${pair[side].seed}` : `${data.variants[row]}: no result yet`)];
  fill($("samples"), ["sentence", ...heads], !known.length ? [] : data.places.map((place, i) => [place + 1,
    ...lists.map((list) => list[i] ?? ""), ...pair.map((one) => one?.hypotheses[i] ?? "")]));
  $("samples-hint").textContent = lists.length > 1 ? "The two were not scored on the same samples, so each has its own references." :
    `${data.places.length} sentences, spread over the split, each with the output of the first seed of either row.`;
}

function start() {
  $("title").textContent = document.title;
  $("caption").textContent = data.caption;
  $("notes").append(...data.notes.map((note) => withCode("li", note)));
  $("comparison").hidden = !data.comparison.length;
  for (const [caption, heads, rows, notes] of data.comparison) {
    const place = element("div", { class: "scroll" }), table = element("table"), list = element("ul");
    fill(table, heads, rows);
    list.append(...notes.map((note) => withCode("li", note)));
    place.append(table);
    $("comparison").append(element("p", {}, caption), place, list);
  }
  $("made").textContent = data.made;
  $("unfinished").hidden = !data.unfinished.length;
  fill($("unfinished").querySelector("table"), ["cell", "state", "steps", "reason"], data.unfinished);
  data.figures.forEach(({ title }, i) => $("figure").append(element("option", { value: i }, title)));
  for (const side of ["left", "right"]) {
    data.variants.forEach((name, row) => $(side).append(element("option", { value: row }, name)));
    $(side).addEventListener("change", drawPair);
  }
  const base = data.variants.indexOf(data.base), other = data.variants.findIndex((_, row) => row !== base);
  $("left").value = base;
  $("right").value = other < 0 ? base : other;
  $("drawn-as").textContent = "A band is the 95% interval of the mean over seeds, by Student's t" + (data.thinned ?
    `; of a long log, each of up to ${data.thinned} points is the mean of neighbouring records.` : ".");
  for (const id of ["figure", "seeds", "log-x", "log-y", "smoothing"]) $(id).addEventListener("input", drawCurves);
  $("plot").addEventListener("mousemove", tell);
  const choose = (rows) => { state.chosen = new Set(rows); drawTable(); drawCurves(); };
  $("all").addEventListener("click", () => choose(data.variants.keys()));
  $("none").addEventListener("click", () => choose([]));
  drawTable();
  drawCurves();
  drawPair();
}

start();
