"use strict";
// The samples of the page: filtered, sorted, enlarged. All text is set as textContent, never as HTML.
const PAGE = 60; // tiles that are drawn at a time
const byId = (id) => document.getElementById(id);
const { split, samples } = JSON.parse(byId("samples").textContent);
const grid = byId("grid"), large = byId("large");
let shown = [], current = 0;

function element(name, text = "", style = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (style) made.className = style;
  return made;
}

function picture(sample) {
  if (!sample.picture) return element("div", "no picture", "none");
  const image = new Image();
  image.src = sample.picture;
  image.alt = `Picture of sample ${sample.number}`;
  return image;
}

function tile(sample, place) {
  const item = element("li"), button = element("button");
  button.type = "button";
  button.tabIndex = place === current ? 0 : -1;
  button.append(picture(sample), element("span", sample.title, "name"), element("span", sample.detail, "faint"));
  const text = sample.caption || sample.source;
  if (text) button.append(element("span", text, "caption"));
  if (sample.problem) button.append(element("span", sample.problem, "bad"));
  item.append(button);
  return item;
}

function addTiles() {
  const first = grid.children.length;
  grid.append(...shown.slice(first, first + PAGE).map((sample, place) => tile(sample, first + place)));
  byId("more").hidden = grid.children.length === shown.length;
}

function update() {
  const words = byId("text").value.toLowerCase().split(/\s+/).filter(Boolean);
  const group = byId("class").value, order = byId("order").value;
  shown = samples.filter((sample) =>
    (group === "" || (group === "!" ? sample.problem : sample.classes.includes(group.slice(1))))
    && words.every((word) => sample.text.includes(word)));
  if (order === "class") {
    shown.sort((a, b) => a.classes.join().localeCompare(b.classes.join()) || a.number - b.number);
  } else if (order !== "number") {
    const sign = order[0] === "-" ? 1 : -1, field = order.replace("-", "");
    shown.sort((a, b) => sign * (a[field] - b[field]) || a.number - b.number);
  }
  current = 0;
  grid.replaceChildren();
  addTiles();
  byId("found").textContent = `${shown.length.toLocaleString("en")} of ${samples.length.toLocaleString("en")} samples`;
}

function focusTile(place) {
  if (!shown.length) return;
  current = Math.max(0, Math.min(place, shown.length - 1));
  while (grid.children.length <= current) addTiles();
  grid.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
  const button = grid.children[current].firstChild;
  button.tabIndex = 0;
  button.focus();
}

function enlarge(place) {
  current = Math.max(0, Math.min(place, shown.length - 1));
  const sample = shown[current];
  byId("large-title").textContent = `Sample ${sample.number} of ${split}`;
  byId("large-picture").replaceChildren(picture(sample));
  const facts = { Class: sample.classes.join(", "), Key: sample.key, Source: sample.source, Image: sample.detail };
  Object.assign(facts, { Caption: sample.caption, Problem: sample.problem });
  byId("large-facts").replaceChildren(...Object.entries(facts).filter(([, value]) => value)
    .flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
  byId("large-code").textContent = `dataset["${split}"][${sample.number}]`;
  byId("copied").textContent = "";
  if (!large.open) large.showModal();
}

async function copyNumber() {
  const number = String(shown[current].number);
  try {
    await navigator.clipboard.writeText(number);
    byId("copied").textContent = `Copied ${number}.`;
  } catch {  // a browser that forbids it
    getSelection().selectAllChildren(byId("large-code"));
    byId("copied").textContent = "The browser does not allow it: the text above is selected.";
  }
}

for (const sample of samples) {
  sample.pixels = sample.size[0] * sample.size[1];
  const { number, key, classes, detail, problem, caption, source } = sample;
  sample.text = [number, key, ...classes, detail, problem, caption, source].join(" ").toLowerCase();
}
const names = [...new Set(samples.flatMap((sample) => sample.classes))].sort((a, b) => a.localeCompare(b));
byId("class").append(new Option("all", ""), ...names.map((name) => new Option(name, `=${name}`)));
if (samples.some((sample) => sample.problem)) byId("class").append(new Option("with a problem", "!"));

byId("controls").addEventListener("submit", (event) => event.preventDefault());
for (const id of ["text", "class", "order"]) byId(id).addEventListener("input", update);
grid.addEventListener("click", (event) => {
  const item = event.target.closest("li");
  if (item) enlarge([...grid.children].indexOf(item));
});
grid.addEventListener("keydown", (event) => {
  const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
  const drawn = grid.children.length;  // Home and End stay among them, all others are drawn as they are reached
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -drawn, End: drawn };
  const item = event.target.closest("li");
  if (!item || !(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const place = [...grid.children].indexOf(item) + steps[event.key];
  focusTile(event.key === "End" ? drawn - 1 : place);
});
large.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step) enlarge(current + step);
});
large.addEventListener("close", () => focusTile(current));
byId("previous").addEventListener("click", () => enlarge(current - 1));
byId("next").addEventListener("click", () => enlarge(current + 1));
byId("copy").addEventListener("click", copyNumber);
byId("close").addEventListener("click", () => large.close());
byId("more").addEventListener("click", () => focusTile(grid.children.length));
update();
