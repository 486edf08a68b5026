// All sessions of this machine as tiles, each a link to its page.
import { ICONS, LATE, judge, shareOf, watchedClasses } from "./alarm.js";
import { Link, keepBeating, now } from "./link.js";
import { colours, fit } from "./paint.js";
import { age, percent, timeOfDay } from "./words.js";

const $ = (id) => document.getElementById(id);
const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };
let beds = [], wall = 0;
const tiles = [];

const link = new Link("/live", {
  hello(content) {
    [beds, wall] = [content.beds, content.wall];
    refresh();
  },
  message() {},
});

function makeTile(number) {
  const item = document.createElement("li");
  item.className = "tile";
  const anchor = document.createElement("a");
  anchor.href = `/bed/${number}`;
  const parts = { anchor };
  const add = (parent, tag, className) => {
    const node = document.createElement(tag);
    node.className = className;
    parent.append(node);
    return node;
  };
  const top = add(anchor, "span", "row");
  parts.name = add(top, "span", "name");
  parts.share = add(top, "span", "name");
  const state = add(anchor, "span", "state");
  parts.icon = add(state, "span", "icon");
  parts.icon.setAttribute("aria-hidden", "true");
  parts.title = add(state, "span", "words");
  parts.detail = add(anchor, "span", "quiet");
  parts.spark = add(anchor, "canvas", "");
  parts.spark.setAttribute("aria-hidden", "true");
  parts.bad = add(anchor, "span", "quiet");
  item.append(anchor);
  $("tiles").append(item);
  return parts;
}

function refresh() {
  const isLinked = now() - link.last < 2.5;
  const waited = link.last > 0 ? now() - link.last : 0;
  $("pulse").dataset.kind = isLinked ? "live" : "lost";
  put($("pulse-words"), isLinked ? `${beds.length} sessions` : link.last > 0 ? `No connection for ${age(link.silence)}` : "Connecting");
  put($("clock"), isLinked ? timeOfDay(wall + waited, 0) : "--:--:--");
  const ringing = [];
  beds.forEach((bed, number) => {
    tiles[number] ??= makeTile(number);
    const tile = tiles[number];
    const epoch = bed.wall && typeof bed.time_s === "number" ? Date.parse(bed.wall) / 1000 - bed.time_s : null;
    const facts = { ...bed, closed: bed.closed, alarms: bed.alarms?.alarms, pausedUntil: bed.alarms?.paused_until_s, time: bed.time_s ?? 0, samplesAge: (bed.samples_s ?? bed.silent_s) + waited, source: bed.source?.state, epoch, raised: bed.raised };
    const verdict = isLinked ? judge(facts) : { kind: "lost", title: "No connection", detail: `${age(link.silence)} old` };
    const state = { session: bed.model, alarms: bed.alarms };
    const places = watchedClasses(state);
    tile.anchor.dataset.kind = verdict.kind;
    put(tile.name, bed.label);
    put(tile.share, isLinked && bed.alive && facts.samplesAge <= LATE ? percent(shareOf(bed.newest, places)) : "–");
    put(tile.icon, ICONS[verdict.kind]);
    put(tile.title, verdict.title);
    put(tile.detail, verdict.detail);
    const bad = Object.entries(bed.bad ?? {}).map(([name, what]) => `${name} ${what}`);
    put(tile.bad, bad.length ? bad.slice(0, 3).join(", ") + (bad.length > 3 ? ` and ${bad.length - 3} more` : "") : bed.session ? "Electrodes good" : "");
    paintSpark(tile, bed, places);
    if (verdict.kind === "physiological") ringing.push(bed.label);
  });
  put($("summary"), ringing.length ? `Alarm: ${ringing.join(", ")}` : "");
}

function paintSpark({ spark, anchor }, bed, places) {
  const { context, ratio, width, height } = fit(spark);
  const theme = colours();
  const ink = getComputedStyle(anchor).color;
  context.clearRect(0, 0, width, height);
  const points = bed.decisions ?? [];
  if (!points.length) return;
  const right = points.at(-1)[0], left = right - 120;
  const on = (bed.alarms?.alarms ?? []).find((one) => typeof one.threshold_on === "number")?.threshold_on;
  const y = (share) => (1 - share) * (height - 4 * ratio) + 2 * ratio;
  context.strokeStyle = ["none", "latched", "acknowledged", "paused"].includes(anchor.dataset.kind) ? theme.red : ink;
  context.lineWidth = ratio;
  if (typeof on === "number") {
    context.setLineDash([5 * ratio, 4 * ratio]);
    context.beginPath();
    context.moveTo(0, y(on));
    context.lineTo(width, y(on));
    context.stroke();
    context.setLineDash([]);
  }
  context.strokeStyle = ["none", "latched", "acknowledged", "paused"].includes(anchor.dataset.kind) ? theme.accent : ink;
  context.lineWidth = 2 * ratio;
  context.beginPath();
  let isDown = false;
  for (const point of points) {
    const share = shareOf(point, places);
    const x = ((point[0] - left) / (right - left)) * width;
    if (share === null) isDown = false;
    else {
      if (isDown) context.lineTo(x, y(share));
      else context.moveTo(x, y(share));
      isDown = true;
    }
  }
  context.stroke();
}

$("theme").addEventListener("click", () => window.changeTheme());
addEventListener("keydown", ({ key }) => key.toLowerCase() === "t" && window.changeTheme());
addEventListener("themechange", refresh);
setInterval(refresh, 250);
keepBeating();
