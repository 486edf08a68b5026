// The page of one session: what arrives is kept here and shown by the parts.
import { ICONS, LATE, judge, shareOf, watchedClasses } from "./alarm.js";
import { Head } from "./head.js";
import { Link, STALE, keepBeating, now, unpack } from "./link.js";
import { MergeMap } from "./merges.js";
import { Strip } from "./strip.js";
import { GAINS, SPANS, Traces } from "./traces.js";
import { Trend } from "./trend.js";
import { age, capital, count, elapsed, journalWords, milliseconds, percent, timeOfDay } from "./words.js";

const MOST_POINTS = 21600, MOST_LINES = 200, SHOWN_LINES = 60, PAUSE_S = 120;
const $ = (id) => document.getElementById(id);
const number = /\/bed\/(\d+)/.exec(location.pathname)?.[1] ?? "0";
const bed = { label: "", session: "", state: {}, points: [], lines: [], happenings: [], overview: [], raised: null, life: {}, counts: {}, failure: "", keptSeconds: 3600 };
const traces = new Traces($("traces"));
const strip = new Strip($("strip"), (seconds) => look(seconds + traces.span / 2));
const head = new Head($("head"), $("electrode-list"), $("bad-electrodes"));
const trend = new Trend($("trend"));
const merges = new MergeMap($("merge-dialog"), $("merge-canvas"), $("merge-words"));
let verdict = { kind: "lost", title: "", detail: "" };
let waiting = null; // messages that came while older samples are fetched, null if they need not wait
let chosen = null; // class of the trend, if the reader chose one
let view = null; // right edge of what is looked back at, null for live
let pace = 1; // of a replay, times real time
let epoch = null; // seconds of the clock when the stream began

// --- what arrives ---

const link = new Link(`/bed/${number}/live`, {
  hello(content) {
    Object.assign(bed, { label: content.label, session: content.session, failure: content.failure, state: content.state, points: content.decisions, lines: content.lines, happenings: content.happenings, overview: content.overview, raised: content.raised, keptSeconds: content.kept_s || 3600 });
    $("label").textContent = content.label;
    traces.begin(content.channels, content.rate);
    waiting = view = epoch = null;
    takeState();
    showJournal();
    refresh();
  },
  message(header, rows) {
    if (header.session !== bed.session) return link.socket.close(); // another session: everything is asked for again
    bed.life = { alive: header.alive, silent: header.silent_s, samples: header.samples_s, wall: header.wall, at: now() };
    bed.counts = header.counts;
    const width = traces.names.length;
    if (rows.length) {
      if (!traces.stop && !waiting) fill(header.first);
      if (waiting) waiting.push([header.first, rows]);
      else traces.push(header.first, rows);
      traces.hear(now());
      $("traces").dataset.newest = String(header.first + rows.length / width);
    }
    if (header.decisions) bed.points = [...bed.points, ...header.decisions].slice(-MOST_POINTS);
    if (header.overview) bed.overview = [...bed.overview, ...header.overview].slice(-3600);
    if (header.lines) {
      for (const line of header.lines) {
        if (line.line === "session") [bed.points, bed.happenings, bed.raised] = [header.decisions ?? [], [], null];
        if (line.kind === "raised" && line.priority === "physiological") bed.raised = line;
      }
      bed.happenings.push(...header.lines.filter((line) => ["mark", "gap"].includes(line.line) || line.priority === "physiological"));
      bed.lines = [...bed.lines, ...header.lines].slice(-MOST_LINES);
      showJournal();
    }
    if (header.state) {
      bed.state = header.state;
      takeState();
    }
  },
});

// What came before the first message, so that the traces begin full; what arrives meanwhile waits.
async function fill(first) {
  waiting = [];
  const past = await fetchSamples(first / traces.rate - SPANS.at(-1) - 5, first / traces.rate);
  const arrived = waiting;
  waiting = null;
  if (past?.rows.length) traces.push(past.first, past.rows);
  for (const [at, rows] of arrived) traces.push(at, rows);
}

async function fetchSamples(start, stop) {
  try {
    const answer = await fetch(`/bed/${number}/samples?start=${Math.max(start, 0).toFixed(3)}&stop=${stop.toFixed(3)}`);
    if (!answer.ok) return null;
    const { header, rows } = unpack(await answer.arrayBuffer());
    return header.session === bed.session ? { first: header.first, rows } : null;
  } catch {
    return null;
  }
}

function takeState() {
  const { state } = bed;
  if (typeof state.time_s === "number" && state.wall) {
    const found = Date.parse(state.wall) / 1000 - state.time_s;
    const running = (Date.parse(state.wall) - Date.parse(state.session?.started)) / 1000;
    pace = running > 1 && state.time_s / running > 1.3 ? state.time_s / running : 1;
    if (pace > 1) epoch = null; // a replay that runs faster has no time of day
    else if (epoch === null || Math.abs(found - epoch) > 1) epoch = found; // samples come in chunks: labels must not tremble
  }
  for (const part of [traces, trend, strip]) part.epoch = epoch;
  const electrodes = state.electrodes ?? {};
  if (JSON.stringify(electrodes) !== JSON.stringify(traces.electrodes)) {
    traces.electrodes = electrodes;
    traces.redraw();
  }
  head.update(electrodes);
  $("merges").hidden = !state.has_merges;
  const classes = state.session?.classes ?? [];
  const select = $("class");
  const watched = watchedClasses(state);
  const sums = watched.length > 1 ? [watched.map((place) => classes[place]).join(" + ")] : []; // one alarm may watch several classes
  const names = [...classes, ...sums];
  if (select.options.length !== names.length || [...select.options].some((option, i) => option.textContent !== names[i])) {
    select.replaceChildren(...names.map((name) => new Option(name)));
    chosen = null;
  }
  const shown = chosen ?? (sums.length ? classes.length : watched[0]);
  trend.places = shown < classes.length ? [shown] : watched;
  select.selectedIndex = shown;
  const watching = (state.alarms?.alarms ?? []).filter((one) => one.priority === "physiological" && typeof one.threshold_on === "number");
  const isWatched = trend.places.join() === watched.join();
  trend.thresholds = !isWatched || !watching.length ? [] : [
    { value: watching[0].threshold_on, words: `alarm from ${percent(watching[0].threshold_on)}`, isOn: true },
    ...(typeof watching[0].threshold_off === "number" ? [{ value: watching[0].threshold_off, words: `off below ${percent(watching[0].threshold_off)}`, isOn: false }] : []),
  ];
}

// --- what is shown ---

const speedWords = () => (pace > 1 ? ` at ${Math.round(pace)} × speed` : "");
const samplesAge = () => (bed.life.samples ?? bed.life.silent ?? 0) + (bed.life.at ? now() - bed.life.at : 0) + link.lag;
const streamNow = () => {
  const base = bed.state.time_s ?? traces.newest;
  return Math.max(base, traces.newest, bed.points.at(-1)?.[0] ?? 0);
};

function refresh() {
  const isLinked = link.isFresh;
  const right = streamNow();
  showAlarm(isLinked, right);
  showPulse(isLinked);
  showSure(isLinked, right);
  showNumbers(isLinked);
  traces.note = view === null ? "" : `Looking back: ${age(Math.max(right - view, 0))} ago`;
  traces.isStale = !isLinked || !bed.life.alive || samplesAge() > STALE;
  const bands = findBands(right);
  traces.bands = bands;
  Object.assign(strip, { seconds: bed.overview, bands, right, kept: Math.min(bed.keptSeconds, 3600), view: [traces.right - traces.span, traces.right] });
  strip.say();
  strip.paint();
  trend.alarms = bands.filter((band) => band.kind === "alarm").map((band) => [band.start, band.stop]);
  trend.update(bed.points, right);
  const newest = shareOf(bed.points.at(-1), trend.places);
  $("trend").setAttribute("aria-label", `Trend of the probability of ${$("class").value || "the class"} over ${trend.minutes} minutes; newest ${percent(newest)}`);
  $("clock").textContent = isLinked ? timeOfDay(bed.life.wall + now() - bed.life.at, 0) : "--:--:--"; // of the machine, as all other times here
  $("elapsed").textContent = isLinked && bed.session ? `running ${elapsed(right)}` : "";
}

// Stretches with an alarm, a mark or no decision.
function findBands(right) {
  const bands = [];
  const open = {};
  for (const line of bed.happenings) {
    if (line.line === "event" && line.priority === "physiological") {
      if (line.kind === "raised") open[line.alarm] = line.time_s;
      else if (["ended", "cleared", "latched"].includes(line.kind) && line.alarm in open) {
        bands.push({ start: open[line.alarm], stop: line.time_s, kind: "alarm" });
        delete open[line.alarm];
      }
    }
    if (line.line === "mark") bands.push({ start: line.time_s, stop: line.stop_s ?? line.time_s, kind: "mark", label: line.label });
    if (line.line === "gap" && typeof line.time_s === "number") bands.push({ start: line.time_s, stop: line.time_s + (line.seconds ?? 0), kind: "none" });
  }
  for (const start of Object.values(open)) bands.push({ start, stop: right, kind: "alarm" });
  return bands;
}

function showAlarm(isLinked, right) {
  const newest = bed.points.at(-1);
  const facts = {
    session: bed.session, failure: bed.failure, alive: bed.life.alive, closed: bed.lines.at(-1)?.line === "closed", alarms: bed.state.alarms?.alarms, pausedUntil: bed.state.alarms?.paused_until_s,
    time: right, samplesAge: samplesAge(), source: bed.state.source?.state, epoch, raised: bed.raised, newest,
  };
  verdict = isLinked ? judge(facts) : { kind: "lost", title: link.last > 0 ? "No connection" : "Connecting", detail: link.last > 0 ? `What you see is ${age(link.silence)} old. Trying again.` : "" };
  const box = $("alarm");
  if (box.dataset.kind !== verdict.kind) box.dataset.kind = verdict.kind;
  put("alarm-icon", ICONS[verdict.kind]);
  put("alarm-title", verdict.title);
  put("alarm-detail", verdict.detail);
  const title = `${["none", "lost"].includes(verdict.kind) ? "" : `${ICONS[verdict.kind]} ${verdict.title} · `}${bed.label || "zipbrain live"}`;
  if (document.title !== title) document.title = title;
  const alarms = bed.state.alarms?.alarms ?? [];
  $("acknowledge").hidden = !isLinked || !alarms.some((one) => ["on", "latched"].includes(one.state));
  const isPaused = typeof facts.pausedUntil === "number" && facts.pausedUntil > right;
  const words = isPaused ? "Resume alarms " : "Pause alarms 2 min ";
  if ($("pause").firstChild.data !== words) $("pause").firstChild.data = words;
  for (const id of ["acknowledge", "pause", "mark-event", "mark-false"]) $(id).disabled = !isLinked || !bed.life.alive;
}

function showPulse(isLinked) {
  const late = samplesAge();
  const pulse = $("pulse");
  if (!isLinked) {
    pulse.dataset.kind = "lost";
    put("pulse-words", link.last > 0 ? `No connection for ${age(link.silence)}` : "Connecting");
  } else if (!bed.life.alive) {
    pulse.dataset.kind = "lost";
    put("pulse-words", "Not running");
  } else {
    pulse.dataset.kind = late > STALE ? "late" : "live";
    put("pulse-words", late > STALE ? `No signal for ${age(late)}` : `Running${speedWords()}, signal ${Math.max(late + 0.2, 0.2).toFixed(1)} s late`);
  }
}

function showSure(isLinked, right) {
  const newest = bed.points.at(-1);
  const isCurrent = isLinked && bed.life.alive && samplesAge() <= LATE;
  const share = isCurrent ? shareOf(newest, trend.places) : null;
  put("sure", percent(share));
  const name = $("class").value;
  if (!newest) put("sure-words", bed.session ? "no decision yet" : "");
  else {
    const late = `${age(Math.max(right - newest[0], 0))} ago`;
    const why = newest[1] === null ? `no decision: ${newest[3] || "undecided"}` : `probability of ${name}`;
    put("sure-words", isCurrent ? [why, newest[4] ? "second look" : "", late].filter(Boolean).join(" · ") : "not current");
  }
}

function showNumbers(isLinked) {
  const { delay_s: delay = {}, counters = {} } = bed.state;
  const audited = counters.audited ?? 0;
  const undecided = (counters.undecided ?? 0) / Math.max((counters.undecided ?? 0) + (counters.decided ?? 0), 1);
  const times = [delay.compute_p50, delay.compute_p95, delay.compute_max].map((seconds) => Math.round(1000 * (seconds ?? 0))).join(" · ");
  const [alarms, refuted, hours] = countAlarms();
  const rows = [
    ["Signal on screen", isLinked ? `${(samplesAge() + 0.2).toFixed(1)} s late` : "not current", !isLinked || samplesAge() > STALE],
    ["Decision after its window", milliseconds(delay.shown), false],
    ["of it, the filter", milliseconds(delay.filter), false],
    ["Model p50 · p95 · longest", `${times} ms`, false],
    ["Gaps · samples dropped", `${count(counters.gaps ?? 0)} · ${count(counters.dropped ?? 0)}`, counters.gaps > 0],
    ["Windows skipped", count(counters.skipped ?? 0), counters.skipped > 0],
    ["No decision", `${count(counters.undecided ?? 0)} (${percent(undecided)})`, false],
    ["Second looks", count(counters.looked_twice ?? 0), false],
    ["Live agreement", audited ? `${count(counters.agreeing)} of ${count(audited)}` : "not audited", false],
    ["Alarms · marked false", `${count(alarms)} · ${count(refuted)}`, false],
    ["Marked false in 24 h", hours >= 1 ? `${((24 * refuted) / hours).toFixed(1)}, from ${hours.toFixed(1)} h` : "– (below 1 h)", false],
    ["Viewers · slow", `${count(bed.counts.viewers ?? 0)} · ${count(bed.counts.slow ?? 0)}`, false],
  ];
  const text = JSON.stringify(rows);
  if (text === $("numbers").dataset.shown) return;
  $("numbers").dataset.shown = text;
  $("numbers").replaceChildren(...rows.map(([term, value, isBad]) => {
    const box = document.createElement("div");
    if (isBad) box.className = "bad";
    const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
    [dt.textContent, dd.textContent] = [term, value];
    box.append(dt, dd);
    return box;
  }));
  put("model", bed.state.session?.model ? `${describe(bed.state.session.model)}, windows of ${bed.state.session.window_s} s every ${bed.state.session.hop_s} s` : "");
}

// Alarms of the session, how many a reader marked as false, and the hours that were decided.
function countAlarms() {
  const bands = findBands(streamNow());
  const marks = bands.filter((band) => band.label === "false alarm");
  const alarms = bands.filter((band) => band.kind === "alarm");
  const refuted = alarms.filter((one) => marks.some((mark) => mark.start <= one.stop && one.start <= mark.stop));
  return [alarms.length, refuted.length, ((bed.state.counters?.decided ?? 0) * (bed.state.session?.hop_s ?? 0)) / 3600];
}

const describe = (model) => (typeof model === "string" ? model : model?.name ?? "");

function showJournal() {
  const items = bed.lines.slice(-SHOWN_LINES).reverse().map((line) => {
    const [words, kind] = journalWords(line);
    const item = document.createElement("li");
    if (kind) item.className = kind;
    const time = document.createElement("time");
    const date = new Date(line.time);
    time.dateTime = line.time;
    time.textContent = date.toLocaleTimeString("en-GB");
    const text = document.createElement("span");
    text.textContent = words;
    item.append(time, text);
    return item;
  });
  $("journal").replaceChildren(...items);
  put("newest-line", items.length ? `Newest line: ${items[0].firstChild.textContent} ${items[0].lastChild.textContent}` : "");
}

function put(id, text) {
  const node = $(id);
  if (node.textContent !== text) node.textContent = text;
}

let silence = 0;
function say(text) {
  put("said", text);
  clearTimeout(silence);
  silence = setTimeout(() => put("said", ""), 4000);
}

// --- what the reader does ---

async function give(command, done) {
  try {
    const answer = await fetch(`/bed/${number}/command`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...command, by: "page" }) });
    say(answer.ok ? done : `Not done: ${await answer.text()}`);
  } catch {
    say("Not done: no connection");
  }
}

const acknowledge = () => $("acknowledge").hidden || give({ command: "acknowledge", alarm: "" }, "Acknowledged");
const pause = () => {
  const until = bed.state.alarms?.paused_until_s;
  if (typeof until === "number" && until > streamNow()) give({ command: "resume" }, "Alarms resumed");
  else give({ command: "pause", seconds: PAUSE_S }, "Alarms paused for two minutes");
};

function mark(label) {
  let stretch = traces.selection && [...traces.selection].sort((a, b) => a - b);
  if (!stretch && label === "false alarm" && bed.raised) {
    const band = findBands(streamNow()).filter((one) => one.kind === "alarm").at(-1);
    stretch = band ? [band.start, band.stop] : [bed.raised.time_s, bed.raised.time_s];
  }
  stretch ??= [traces.right - traces.span, traces.right];
  const [start, stop] = stretch.map((seconds) => Math.max(Math.round(1000 * seconds) / 1000, 0));
  traces.selection = null;
  give({ command: "mark", time_s: start, stop_s: Math.max(stop, start), label }, `Marked as ${label}: ${timeOfDay(epoch, start)} to ${timeOfDay(epoch, stop)}`);
}

let asked = 0;
async function look(right) {
  if (right === null || right >= traces.newest - 0.5) {
    view = null;
    asked++;
    traces.show(null);
  } else {
    view = Math.max(right, Math.max(traces.newest - bed.keptSeconds, 0) + traces.span);
    const mine = ++asked;
    const past = await fetchSamples(view - traces.span - 3, view + 0.1);
    if (mine !== asked || view === null) return;
    if (past) traces.show({ ...past, right: view });
    else say("That stretch can't be had");
  }
  $("live").setAttribute("aria-pressed", String(view === null));
}

async function showMerges() {
  if ($("merges").hidden) return;
  try {
    const answer = await fetch(`/bed/${number}/merges`);
    const { session, map } = answer.ok ? await answer.json() : {};
    if (map && session === bed.session) merges.open(map, epoch);
    else say("There is no merge map yet");
  } catch {
    say("No merge map: no connection");
  }
}

const turn = (direction) => look((view ?? traces.play) + direction * 0.8 * traces.span);
const hold = () => look(view === null ? traces.play - 0.6 : null);

function choose(list, value, step) {
  return list[Math.max(Math.min(list.indexOf(value) + step, list.length - 1), 0)];
}
function setGain(step) {
  traces.gain = choose(GAINS, traces.gain, step);
  put("gain", `${traces.gain} µV`);
  traces.redraw();
  describeTraces();
}
function setSpan(step) {
  traces.span = choose(SPANS, traces.span, step);
  put("span", `${traces.span} s`);
  traces.redraw();
  if (view !== null) look(view);
  describeTraces();
}
function describeTraces() {
  $("traces").setAttribute("aria-label", `EEG traces of ${traces.names.length} channels over ${traces.span} seconds, ${traces.gain} microvolts per row, high-pass 0.5 hertz for the eye`);
}

const keys = {
  ArrowUp: () => setGain(-1), ArrowDown: () => setGain(1), "+": () => setSpan(1), "=": () => setSpan(1), "-": () => setSpan(-1), ArrowLeft: () => turn(-1), ArrowRight: () => turn(1),
  " ": hold, a: acknowledge, p: pause, e: () => mark("event"), f: () => mark("false alarm"), m: () => $("merges").click(), t: () => window.changeTheme(), "?": () => $("keys").showModal(), Escape: () => { traces.selection = null; },
};
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || event.target.closest("select")) return;
  if (event.key === " " && event.target.closest("button, a")) return;
  if (event.target.id === "journal" && event.key.startsWith("Arrow")) return;
  const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

const clicks = {
  "gain-up": () => setGain(-1), "gain-down": () => setGain(1), "span-up": () => setSpan(1), "span-down": () => setSpan(-1), back: () => turn(-1), forth: () => turn(1), live: hold,
  "mark-event": () => mark("event"), "mark-false": () => mark("false alarm"), acknowledge, pause, theme: () => window.changeTheme(), help: () => $("keys").showModal(),
  merges: showMerges,
};
for (const [id, act] of Object.entries(clicks)) $(id).addEventListener("click", act);
for (const button of document.querySelectorAll("[data-minutes]")) {
  button.addEventListener("click", () => {
    trend.minutes = Number(button.dataset.minutes);
    for (const other of document.querySelectorAll("[data-minutes]")) other.setAttribute("aria-pressed", String(other === button));
    refresh();
  });
}
$("class").addEventListener("change", () => {
  chosen = $("class").selectedIndex;
  takeState();
  refresh();
});
addEventListener("themechange", () => { traces.redraw(); refresh(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { traces.redraw(); refresh(); });

// One finger or the mouse selects, two fingers change amplitude and time base.
const fingers = new Map();
let pinch = null;
const canvas = $("traces");
canvas.addEventListener("pointerdown", (event) => {
  fingers.set(event.pointerId, event);
  canvas.setPointerCapture(event.pointerId);
  traces.selection = null;
  if (fingers.size === 2) pinch = spread();
});
canvas.addEventListener("pointermove", (event) => {
  const before = fingers.get(event.pointerId);
  if (!before) return;
  if (fingers.size === 2) {
    fingers.set(event.pointerId, event);
    const after = spread();
    if (after.x / pinch.x > 1.5 || after.x / pinch.x < 0.67) { setSpan(after.x > pinch.x ? -1 : 1); pinch = { ...pinch, x: after.x }; }
    if (after.y / pinch.y > 1.5 || after.y / pinch.y < 0.67) { setGain(after.y > pinch.y ? -1 : 1); pinch = { ...pinch, y: after.y }; }
  } else if (Math.abs(event.offsetX - before.offsetX) > 6) traces.selection = [traces.timeAt(before.offsetX), traces.timeAt(event.offsetX)];
});
for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));
function spread() {
  const [a, b] = [...fingers.values()];
  return { x: Math.max(Math.abs(a.clientX - b.clientX), 30), y: Math.max(Math.abs(a.clientY - b.clientY), 30) };
}

function frame() {
  traces.frame(now());
  requestAnimationFrame(frame);
}
describeTraces();
setInterval(refresh, 250);
requestAnimationFrame(frame);
keepBeating();
fetch("/beds").then((answer) => answer.json()).then(({ beds }) => { $("to-wall").hidden = beds < 2; }).catch(() => {});
