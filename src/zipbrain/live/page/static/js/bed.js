// The page of one session: what arrives is kept here and shown by the parts.
import { ICONS, LATE, judge, judgePulse, shareOf, thresholdsOf, watchedClasses } from "./alarm.js";
import { findBands } from "./bands.js";
import { Head } from "./head.js";
import { listJournal } from "./journal.js";
import { Link, STALE, keepBeating, now, unpack } from "./link.js";
import { MergeMap } from "./merges.js";
import { Numbers } from "./numbers.js";
import { Strip } from "./strip.js";
import { followFingers } from "./touch.js";
import { GAINS, SPANS, Traces } from "./traces.js";
import { Trend } from "./trend.js";
import { age, elapsed, percent, timeOfDay } from "./words.js";

const MOST_POINTS = 21600, MOST_LINES = 200, PAUSE_S = 120;
const $ = (id) => document.getElementById(id);
const number = /\/bed\/(\d+)/.exec(location.pathname)?.[1] ?? "0";
const bed = { label: "", session: "", state: {}, points: [], lines: [], happenings: [], overview: [], raised: null, life: {}, counts: {}, failure: "", keptSeconds: 3600, isWhole: false };
const traces = new Traces($("traces"));
const strip = new Strip($("strip"), (seconds) => look(seconds + traces.span / 2));
const head = new Head($("head"), $("electrode-list"), $("bad-electrodes"));
const trend = new Trend($("trend"));
const numbers = new Numbers($("decision-line"), $("signal-line"), $("numbers"));
const merges = new MergeMap($("merge-dialog"), $("merge-canvas"), $("merge-words"));
let verdict = { kind: "lost", title: "", detail: "" };
let waiting = null; // messages that came while older samples are fetched, null if they need not wait
let chosen = null; // class of the trend, if the viewer chose one
let view = null; // right edge of what is looked back at, null for live
let pace = 1; // of a replay, times real time
let epoch = null; // seconds of the clock when the stream began

// --- what arrives ---

const link = new Link(`/bed/${number}/live`, {
  hello(content) {
    Object.assign(bed, { label: content.label, session: content.session, failure: content.failure, state: content.state, points: content.decisions, lines: content.lines, happenings: content.happenings, overview: content.overview, raised: content.raised, keptSeconds: content.kept_s || 3600, isWhole: content.is_whole });
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
    bed.isWhole = header.is_whole;
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
        if (line.kind === "raised" && line.category === "physiological") bed.raised = line;
      }
      bed.happenings.push(...header.lines.filter((line) => ["mark", "gap"].includes(line.line) || line.category === "physiological"));
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
  for (const part of [traces, head]) part.update(state.electrodes ?? {});
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
  trend.thresholds = trend.places.join() === watched.join() ? thresholdsOf(state) : [];
}

// --- what is shown ---

const samplesAge = () => (bed.life.samples ?? bed.life.silent ?? 0) + (bed.life.at ? now() - bed.life.at : 0) + link.lag;
const streamNow = () => Math.max(bed.state.time_s ?? 0, traces.newest, bed.points.at(-1)?.[0] ?? 0);

function refresh() {
  const isLinked = link.isFresh;
  const right = streamNow();
  showAlarm(isLinked, right);
  showPulse(isLinked);
  showSure(isLinked, right);
  traces.note = view === null ? "" : `Looking back: ${age(Math.max(right - view, 0))} ago`;
  traces.isStale = !isLinked || !bed.life.alive || samplesAge() > STALE;
  const bands = findBands(bed.happenings, right);
  showNumbers(isLinked, bands);
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
  const [kind, words] = isLinked ? judgePulse(bed.life.alive, samplesAge(), pace) : ["lost", link.last > 0 ? `No connection for ${age(link.silence)}` : "Connecting"];
  $("pulse").dataset.kind = kind;
  put("pulse-words", words);
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
    put("sure-words", isCurrent ? `${why}\n${newest[4] ? "second look · " : ""}${late}` : "not current");
  }
}

function showNumbers(isLinked, bands) {
  numbers.update({ state: bed.state, bands, counts: bed.counts, isWhole: bed.isWhole, isCurrent: isLinked && bed.life.alive, samplesAge: samplesAge() });
  put("model", bed.state.session?.model ? `${describe(bed.state.session.model)}, windows of ${bed.state.session.window_s} s every ${bed.state.session.hop_s} s` : "");
}

const describe = (model) => (typeof model === "string" ? model : model?.name ?? "");

function showJournal() {
  const newest = listJournal($("journal"), bed.lines);
  put("newest-line", newest && `Newest line: ${newest}`);
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

// --- what the viewer does ---

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
    const band = findBands(bed.happenings, streamNow()).filter((one) => one.kind === "alarm").at(-1);
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

const showEveryNumber = () => $("numbers-dialog").showModal();
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
  " ": hold, a: acknowledge, p: pause, e: () => mark("event"), f: () => mark("false alarm"), m: () => $("merges").click(), n: showEveryNumber, t: () => window.changeTheme(), "?": () => $("keys").showModal(), Escape: () => { traces.selection = null; },
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
  merges: showMerges, "every-number": showEveryNumber,
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

followFingers($("traces"), {
  select: (from, to) => { traces.selection = [traces.timeAt(from), traces.timeAt(to)]; },
  clear: () => { traces.selection = null; },
  setGain,
  setSpan,
});

function frame() {
  traces.frame(now());
  requestAnimationFrame(frame);
}
describeTraces();
setInterval(refresh, 250);
requestAnimationFrame(frame);
keepBeating();
fetch("/beds").then((answer) => answer.json()).then(({ beds }) => { $("to-wall").hidden = beds < 2; }).catch(() => {});
