// Electrodes on a head: where they sit by the 10-10 system, and what is wrong with which.
import { capital } from "./words.js";

const RINGS = { FP: [18, 0.8], AF: [36, 0.6], F: [54, 0.4], FT: [72, 0.2], FC: [72, 0.2], T: [90, 0], C: [90, 0], TP: [108, -0.2], CP: [108, -0.2], P: [126, -0.4], PO: [144, -0.6], O: [162, -0.8] };
const RENAMED = { T3: "T7", T4: "T8", T5: "P7", T6: "P8", T1: "FT9", T2: "FT10" };
const LONE = { NZ: [0, 1], IZ: [0, -1], A1: [-1.02, -0.1], A2: [1.02, -0.1], M1: [-1.0, -0.22], M2: [1.0, -0.22] };
const SIGNS = { flat: "–", saturated: "■", missing: "✕", noisy: "≈" };
const SVG = "http://www.w3.org/2000/svg";

const bare = (name) => name.toUpperCase().replace(/^(EEG|POL)[\s_:]+/, "").replace(/[-_\s](REF|LE|AR|AVG|AVERAGE|CAR)$/, "").replace(/\./g, "");

// Place on a head of radius 1, nose up; null for a name that says none. A pair lies in the middle.
export function placeOf(name) {
  const parts = bare(name).split("-");
  if (parts.length === 2) {
    const [a, b] = parts.map(placeOf);
    return a && b ? [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2] : null;
  }
  const known = RENAMED[parts[0]] ?? parts[0];
  if (LONE[known]) return LONE[known];
  const [, row, column] = /^([A-Z]+?)(Z|\d{1,2})$/.exec(known) ?? [];
  if (!RINGS[row]) return null;
  const [angle, middle] = RINGS[row];
  if (column === "Z") return [0, middle];
  const number = Number(column);
  const side = number % 2 ? -1 : 1;
  const share = row === "FP" || row === "O" ? 1 : Math.min(Math.ceil(number / 2), 4) / 4;
  const out = 0.8 * Math.sin((angle * Math.PI) / 180), up = 0.8 * Math.cos((angle * Math.PI) / 180);
  const far = number > 8 ? 1.2 : 1;
  return [side * out * share * far, (middle + (up - middle) * share * share) * far];
}

const make = (parent, tag, facts, text) => {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(facts)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  parent.append(node);
  return node;
};

export class Head {
  constructor(box, list, summary) {
    this.box = box;
    this.list = list;
    this.summary = summary; // on a phone, where the head is below the first screen
    this.shown = "";
  }

  update(electrodes) {
    const text = JSON.stringify(electrodes);
    if (text === this.shown) return;
    this.shown = text;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", "-118 -118 236 236");
    make(svg, "path", { d: "M-14 -98 L0 -116 L14 -98", class: "outline" });
    make(svg, "path", { d: "M-99 -18 q-13 18 0 36 M99 -18 q13 18 0 36", class: "outline" });
    make(svg, "circle", { r: 100, class: "outline" });
    const names = Object.keys(electrodes);
    const bad = names.filter((name) => electrodes[name] !== "good");
    for (const name of [...names.filter((one) => electrodes[one] === "good"), ...bad]) {
      const place = placeOf(name);
      if (!place) continue;
      const isBad = electrodes[name] !== "good";
      const spot = make(svg, "g", { transform: `translate(${96 * place[0]} ${-96 * place[1]})`, class: isBad ? "spot bad" : "spot" });
      make(spot, "circle", { r: isBad ? 13 : names.length > 32 ? 5 : 9 });
      if (isBad) {
        make(spot, "text", { y: 5, class: "sign" }, SIGNS[electrodes[name]] ?? "?");
        make(spot, "text", { y: place[1] > 0.6 ? 26 : -17, class: "name" }, name);
      } else if (names.length <= 32) make(spot, "text", { y: 3 }, bare(name).slice(0, 3));
    }
    this.box.replaceChildren(svg);
    const words = bad.map((name) => {
      const item = document.createElement("li");
      const strong = document.createElement("strong");
      strong.textContent = name;
      item.append(`${SIGNS[electrodes[name]] ?? "?"} `, strong, ` ${electrodes[name]}`);
      return item;
    });
    if (!bad.length) {
      const item = document.createElement("li");
      item.textContent = names.length ? `All ${names.length} good` : "Not known yet";
      words.push(item);
    } else {
      const rest = document.createElement("li");
      rest.className = "quiet";
      rest.textContent = `${names.length - bad.length} of ${names.length} good`;
      words.push(rest);
    }
    this.list.replaceChildren(...words);
    this.summary.textContent = bad.map((name) => `${name} ${electrodes[name]}`).join(" · ");
  }
}
export { capital };
