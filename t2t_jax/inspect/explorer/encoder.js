const [layers, heads, length] = data.shape;
const weights = bytes(data.attention);
const image = data.image && bytes(data.image.values);
let chosen = 0;

// The share of its attention that a position gives to another; the head after the last is the mean.
function share(layer, head, query, key) {
  const at = (h) => weights[((layer * heads + h) * length + query) * length + key] / 255;
  if (head < heads) return at(head);
  let sum = 0;
  for (let h = 0; h < heads; h++) sum += at(h);
  return sum / heads;
}

function pixel(place) {
  const { channels } = data.image;
  const of = (c) => image[place * channels + (channels === 1 ? 0 : c)];
  return [of(0), of(1), of(Math.min(2, channels - 1))];
}

// Position 0 is the class token, and the patches follow row by row.
function patchAt(x, y) {
  const { size, patch } = data.image;
  return 1 + Math.floor(y / patch) * (size / patch) + Math.floor(x / patch);
}

function draw(canvas, brightness) {
  const { size } = data.image;
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(size, size);
  for (let y = 0; y < size; y++) {
    for (let x = 0; x < size; x++) {
      const place = y * size + x;
      const light = brightness(patchAt(x, y));
      const color = pixel(place);
      for (let c = 0; c < 3; c++) {
        pixels.data[4 * place + c] = light === null ? color[c] : 255 * light * 0.75 + color[c] * 0.25;
      }
      pixels.data[4 * place + 3] = 255;
    }
  }
  context.putImageData(pixels, 0, 0);
}

function strip(canvas, shares) {
  canvas.width = length;
  canvas.height = 1;
  canvas.style.height = "1.5rem";
  const context = canvas.getContext("2d");
  shares.forEach((light, key) => {
    const shade = Math.round(255 * light);
    context.fillStyle = `rgb(${shade}, ${shade}, ${Math.max(40, shade)})`;
    context.fillRect(key, 0, 1, 1);
  });
}

function showHeads() {
  $("chosen").textContent = `\u201c${data.units[chosen].name}\u201d`;
  const table = document.createElement("table");
  const top = table.insertRow();
  for (let head = -1; head <= heads; head++) {
    const cell = document.createElement("th");
    cell.textContent = head < 0 ? "" : head < heads ? `head ${head + 1}` : "mean";
    top.append(cell);
  }
  for (let layer = 0; layer < layers; layer++) {
    const row = table.insertRow();
    const name = document.createElement("th");
    name.textContent = `layer ${layer + 1}`;
    row.append(name);
    for (let head = 0; head <= heads; head++) row.insertCell().append(headMap(layer, head));
  }
  $("heads").replaceChildren(table);
}

function headMap(layer, head) {
  const shares = Array.from({ length }, (_, key) => share(layer, head, chosen, key));
  const largest = Math.max(...shares, 1e-9);
  const canvas = document.createElement("canvas");
  const best = shares.indexOf(Math.max(...shares));
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `most on ${data.units[best].name}, ${shares[best].toFixed(2)}`);
  canvas.title = canvas.getAttribute("aria-label");
  const lights = shares.map((one) => one / largest);
  if (image) draw(canvas, (place) => lights[place]);
  else strip(canvas, lights);
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * canvas.width);
    const y = Math.floor(((event.clientY - box.top) / box.height) * canvas.height);
    const key = image ? patchAt(x, y) : x;
    if (key < length) $("value").textContent = `${data.units[key].name}: ${shares[key].toFixed(3)}`;
  });
  return canvas;
}

function choose(place) {
  chosen = place;
  for (const unit of $("units").children) {
    unit.setAttribute("aria-pressed", String(Number(unit.dataset.place) === place));
  }
  showHeads();
}

$("sentence").textContent = data.answer;
$("hint").textContent = image
  ? "Choose a patch of the image, or the class token, from which the label is predicted."
  : "Choose a subword; what is predicted from it stands below it.";
for (const [place, unit] of data.units.entries()) {
  if (image && place) break; // patches are chosen on the image
  const button = document.createElement("button");
  button.className = "unit";
  button.dataset.place = place;
  button.textContent = unit.name;
  const label = document.createElement("small");
  label.textContent = unit.label || "";
  button.append(label);
  button.addEventListener("click", () => choose(place));
  $("units").append(button);
}
if (image) {
  const picture = $("picture");
  picture.hidden = false;
  draw(picture, () => null);
  const { size } = data.image;
  picture.addEventListener("click", (event) => {
    const box = picture.getBoundingClientRect();
    const x = Math.floor(((event.clientX - box.left) / box.width) * size);
    const y = Math.floor(((event.clientY - box.top) / box.height) * size);
    choose(patchAt(x, y));
  });
}
choose(image ? 0 : Math.max(0, data.units.findIndex((unit) => unit.label)));
