// Traces of all channels: drawn once as they arrive, on a sheet that scrolls.
import { FONT, colours, fit, hatch } from "./paint.js";
import { timeOfDay } from "./words.js";

export const GAINS = [10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000, 2000, 5000]; // microvolts per row
export const SPANS = [2, 5, 10, 15, 20, 30, 60]; // seconds across
const LAG = 0.2; // seconds that drawing stays behind, so that messages ten times a second scroll evenly
const HIGH_PASS = 0.5; // hertz; traces are for the eye: offsets and slow drifts would push them out of their rows
const MARGIN = 46; // pixels for names

export class Traces {
  constructor(canvas) {
    this.canvas = canvas;
    this.sheet = document.createElement("canvas");
    Object.assign(this, { names: [], rate: 0, stop: 0, gain: 100, span: 10, past: null, electrodes: {}, bands: [], epoch: null, selection: null });
    this.play = 0; // second of the stream at the right edge
    this.isStale = false;
    this.note = ""; // over a stretch of the past, so that it is not taken for the present
    this.wanted = true;
    this.drawn = -1;
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    this.before = 0;
  }

  begin(names, rate) {
    this.names = names;
    this.rate = rate;
    this.size = Math.ceil((SPANS.at(-1) + 6) * rate) || 1;
    this.ring = new Float32Array(this.size * names.length).fill(NaN);
    this.level = new Float64Array(names.length).fill(NaN);
    this.stop = 0;
    this.start = 0;
    this.play = 0;
    this.past = null;
    this.heard = [];
    this.speed = 1;
    this.redraw();
  }

  redraw() {
    this.drawn = -1;
    this.wanted = true;
  }

  // Which electrodes are good, by name.
  update(electrodes) {
    if (JSON.stringify(electrodes) === JSON.stringify(this.electrodes)) return;
    this.electrodes = electrodes;
    this.redraw();
  }

  // Samples (n x channels) from an index on; what lies between is a gap.
  push(first, rows) {
    const width = this.names.length;
    if (!width || !rows.length) return;
    const count = rows.length / width;
    if (this.stop === 0 || first - this.stop > this.size || first + count < this.stop) {
      this.start = this.stop = first;
      this.ring.fill(NaN);
      this.drawn = -1;
    }
    for (; this.stop < first; this.stop++) this.ring.fill(NaN, (this.stop % this.size) * width, ((this.stop % this.size) + 1) * width);
    const skip = this.stop - first;
    const pass = 1 - Math.exp((-2 * Math.PI * HIGH_PASS) / this.rate);
    for (let row = skip; row < count; row++, this.stop++) {
      const place = (this.stop % this.size) * width;
      for (let c = 0; c < width; c++) this.ring[place + c] = settle(this.level, c, rows[row * width + c], pass);
    }
    this.start = Math.max(this.start, this.stop - this.size);
  }

  // A message came: a replay may run at another speed than life.
  hear(time) {
    this.heard = [...this.heard.filter((one) => time - one.time < 3), { time, stop: this.stop }];
    const [first, last] = [this.heard[0], this.heard.at(-1)];
    const found = last.time - first.time > 1.5 ? (last.stop - first.stop) / this.rate / (last.time - first.time) : 1;
    this.speed = found > 1.4 ? found : 1;
  }

  // Show a stretch of the past, or the newest one again with null.
  show(past) {
    this.past = past;
    if (past) {
      const width = this.names.length;
      const level = new Float64Array(width).fill(NaN);
      const pass = 1 - Math.exp((-2 * Math.PI * HIGH_PASS) / this.rate);
      const kept = new Float32Array(past.rows.length);
      for (let at = 0; at < kept.length; at++) kept[at] = settle(level, at % width, past.rows[at], pass);
      this.past = { ...past, rows: kept, stop: past.first + kept.length / width };
    }
    this.redraw();
  }

  get newest() {
    return this.rate ? this.stop / this.rate : 0;
  }

  get right() {
    return this.past ? this.past.right : this.play;
  }

  timeAt(x) {
    const { clientWidth } = this.canvas;
    return this.right - this.span * (1 - (x - MARGIN) / (clientWidth - MARGIN));
  }

  frame(time) {
    if (!this.rate) return;
    const passed = Math.min(time - this.before, 1);
    if (this.still.matches && passed < 1 && !this.wanted) return; // once a second is motion enough
    this.before = time;
    const target = this.newest - LAG * this.speed;
    const error = (target - this.play) / this.speed;
    if (Math.abs(error) > 1 || this.still.matches) this.play = target;
    else this.play = Math.min(this.play + passed * this.speed * (1 + Math.max(Math.min(2 * error, 0.5), -0.5)), this.newest);
    const { context, changed, ratio, width, height } = fit(this.canvas);
    if (changed) this.redraw();
    this.paint(context, ratio, width, height);
    this.wanted = false;
  }

  paint(context, ratio, width, height) {
    const theme = colours();
    const left = MARGIN * ratio, foot = 18 * ratio;
    const plot = { width: width - left, height: height - foot, ratio };
    const perSecond = plot.width / this.span;
    this.draw(plot, perSecond, theme);
    const start = this.right - this.span;
    const x = (seconds) => left + (seconds - start) * perSecond;
    context.clearRect(0, 0, width, height);
    this.paintBands(context, x, left, plot, theme);
    this.paintSeconds(context, x, start, plot, theme);
    context.globalAlpha = this.isStale && !this.past ? 0.35 : 1;
    const edge = Math.floor(this.right * perSecond) + 1;
    const split = ((edge % plot.width) + plot.width) % plot.width;
    const tail = plot.width - split;
    if (tail) context.drawImage(this.sheet, split, 0, tail, plot.height, left, 0, tail, plot.height);
    if (split) context.drawImage(this.sheet, 0, 0, split, plot.height, left + tail, 0, split, plot.height);
    context.globalAlpha = 1;
    this.paintNames(context, left, plot, theme);
    this.paintScale(context, plot, left, theme);
    if (this.past) this.paintNote(context, plot, left, theme);
  }

  paintNote(context, plot, left, theme) {
    const words = `◂ ${this.note}`;
    context.font = `700 ${14 * plot.ratio}px ${FONT}`;
    const wide = context.measureText(words).width + 20 * plot.ratio, tall = 26 * plot.ratio;
    const x = left + (plot.width - wide) / 2;
    context.fillStyle = theme.amber;
    context.fillRect(x, 0, wide, tall);
    context.fillRect(left, 0, plot.width, 3 * plot.ratio);
    context.fillStyle = theme["amber-ink"];
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(words, x + wide / 2, tall / 2);
  }

  // Add to the sheet what is new since the last frame, or all of it.
  draw(plot, perSecond, theme) {
    const { sheet } = this;
    if (sheet.width !== plot.width || sheet.height !== plot.height) {
      [sheet.width, sheet.height] = [Math.max(plot.width, 1), Math.max(plot.height, 1)];
      this.drawn = -1;
    }
    const from = this.past ?? this;
    const last = Math.min(Math.floor(this.right * this.rate), from.stop - 1);
    const oldest = this.past ? this.past.first : this.start;
    const context = sheet.getContext("2d");
    let first = this.drawn;
    if (first < 0) {
      context.clearRect(0, 0, sheet.width, sheet.height);
      first = Math.max(oldest, Math.floor((this.right - this.span) * this.rate));
    } else {
      const begin = Math.floor((first / this.rate) * perSecond) + 1;
      const end = Math.floor(this.right * perSecond) + 3;
      for (let column = begin; column < end; ) {
        const place = column % plot.width;
        const some = Math.min(end - column, plot.width - place);
        context.clearRect(place, 0, some, plot.height);
        column += some;
      }
    }
    if (last <= first) return;
    const step = perSecond / this.rate;
    const turns = [...new Set([Math.floor((first * step) / plot.width), Math.floor((last * step) / plot.width)])];
    context.lineWidth = plot.ratio;
    context.lineJoin = "round";
    this.names.forEach((name, c) => {
      context.strokeStyle = (this.electrodes[name] ?? "good") === "good" ? theme.trace : theme.weak;
      for (const turn of turns) {
        context.setTransform(1, 0, 0, 1, -turn * plot.width, 0);
        this.line(context, c, first, last, step, plot);
      }
    });
    context.setTransform(1, 0, 0, 1, 0, 0);
    this.drawn = last;
  }

  line(context, c, first, last, step, plot) {
    const width = this.names.length;
    const rowHeight = plot.height / width;
    const middle = (c + 0.5) * rowHeight, scale = rowHeight / this.gain, most = 2.5 * rowHeight;
    const { rows, first: base } = this.past ?? { rows: this.ring, first: 0 };
    const size = this.past ? Infinity : this.size;
    const y = (value) => middle - Math.max(Math.min(value * scale, most), -most);
    const bundle = Math.floor(0.5 / step); // samples that share half a pixel: their extremes are enough
    context.beginPath();
    let isDown = false;
    for (let i = first; i <= last; ) {
      const until = bundle > 2 ? Math.min(i + bundle, last + 1) : i + 1;
      let low = Infinity, high = -Infinity;
      for (let j = i; j < until; j++) {
        const value = rows[((j - base) % size) * width + c];
        if (value < low) low = value;
        if (value > high) high = value;
      }
      if (low === Infinity) isDown = false;
      else {
        if (isDown) context.lineTo(i * step, y(high));
        else context.moveTo(i * step, y(high));
        if (low !== high) context.lineTo(i * step, y(low));
        isDown = true;
      }
      i = until;
    }
    context.stroke();
  }

  paintBands(context, x, left, plot, theme) {
    for (const { start, stop, kind } of this.bands) {
      const from = Math.max(x(start), left), to = Math.min(x(stop), left + plot.width);
      if (to <= from) continue;
      if (kind === "none") hatch(context, from, plot.height - 7 * plot.ratio, to - from, 7 * plot.ratio, theme.weak);
      else {
        context.fillStyle = kind === "alarm" ? theme.red : theme.accent;
        context.globalAlpha = 0.1;
        context.fillRect(from, 0, to - from, plot.height);
        context.globalAlpha = 1;
        context.fillRect(from, 0, to - from, 3 * plot.ratio);
      }
    }
    if (this.selection) {
      const [a, b] = this.selection.map((seconds) => Math.max(x(seconds), left));
      context.fillStyle = theme.tint;
      context.fillRect(Math.min(a, b), 0, Math.abs(b - a), plot.height);
    }
  }

  paintSeconds(context, x, start, plot, theme) {
    const every = [1, 2, 5, 10, 30].find((step) => (step * plot.width) / this.span > 78 * plot.ratio) ?? 60;
    const lines = this.span <= 20 ? 1 : 5;
    context.font = `${11 * plot.ratio}px ${FONT}`;
    context.textAlign = "center";
    context.textBaseline = "bottom";
    const shift = this.epoch === null ? 0 : this.epoch % 60; // lines stand at full seconds of the clock
    for (let clock = Math.ceil((start + shift) / lines) * lines; clock - shift <= start + this.span; clock += lines) {
      const at = x(clock - shift);
      const isLabelled = Math.round(clock) % every === 0;
      context.fillStyle = isLabelled ? theme.line : theme.faint;
      context.fillRect(Math.round(at), 0, plot.ratio, plot.height);
      if (isLabelled && at > MARGIN * plot.ratio + 20 && clock - shift >= 0) {
        context.fillStyle = theme.quiet;
        context.fillText(timeOfDay(this.epoch, clock - shift + 0.001), Math.min(at, x(start + this.span) - 28 * plot.ratio), plot.height + 17 * plot.ratio);
      }
    }
  }

  paintNames(context, left, plot, theme) {
    const rowHeight = plot.height / this.names.length;
    context.textAlign = "left";
    context.textBaseline = "middle";
    this.names.forEach((name, c) => {
      const state = this.electrodes[name] ?? "good";
      const size = Math.max(Math.min(rowHeight * 0.72, 12.5 * plot.ratio), 7.5 * plot.ratio);
      context.font = `${state === "good" ? 500 : 700} ${size}px ${FONT}`;
      context.fillStyle = state === "good" ? theme.ink : theme.red;
      context.fillText((state === "good" ? "" : "✕ ") + name, 0, (c + 0.5) * rowHeight, left - 4 * plot.ratio);
    });
  }

  paintScale(context, plot, left, theme) {
    const rowHeight = plot.height / this.names.length;
    const x = left + plot.width - 10 * plot.ratio, y = plot.height - 14 * plot.ratio;
    const bars = Math.max(1, Math.round((26 * plot.ratio) / rowHeight));
    const words = `${this.gain * bars} µV`;
    context.font = `600 ${11 * plot.ratio}px ${FONT}`;
    const wide = context.measureText(words).width;
    context.fillStyle = theme.sheet;
    context.globalAlpha = 0.8;
    context.fillRect(x - wide - 12 * plot.ratio, y - bars * rowHeight - 4, wide + 22 * plot.ratio, bars * rowHeight + 8);
    context.globalAlpha = 1;
    context.fillStyle = theme.ink;
    context.fillRect(x, y - bars * rowHeight, 2 * plot.ratio, bars * rowHeight);
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillText(words, x - 5 * plot.ratio, y - (bars * rowHeight) / 2);
  }
}

// One step of a high-pass: the value less its slow level; a gap begins a new one.
function settle(level, c, value, pass) {
  if (value !== value) {
    level[c] = NaN;
    return NaN;
  }
  level[c] = level[c] === level[c] ? level[c] + pass * (value - level[c]) : value;
  return value - level[c];
}
