// The trend of one class's probability, with thresholds, alarms and stretches without a decision.
import { shareOf } from "./alarm.js";
import { FONT, colours, hatch } from "./paint.js";
import { roundTimes, shortTime } from "./words.js";

const MOST_POINTS = 900;

export class Trend {
  constructor(box) {
    this.box = box;
    Object.assign(this, { minutes: 10, places: [1], epoch: null, thresholds: [], alarms: [], undecided: [], right: 0 });
    this.build();
    new ResizeObserver(() => this.resize()).observe(box);
    addEventListener("themechange", () => this.build());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (width && height) this.plot.setSize({ width, height });
  }

  build() {
    const theme = colours();
    const axis = { stroke: theme.quiet, font: `11px ${FONT}`, grid: { stroke: theme.faint, width: 1 }, ticks: { show: false } };
    const data = this.plot?.data ?? [[0], [null]];
    this.plot?.destroy();
    this.plot = new uPlot({
      width: Math.max(this.box.clientWidth, 100),
      height: Math.max(this.box.clientHeight, 80),
      padding: [6, 8, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false, range: () => [this.right - 60 * this.minutes, this.right] }, y: { range: [0, 100] } },
      axes: [
        { ...axis, size: 22, gap: 2, space: 70, splits: (_, __, low, high) => this.splits(low, high), values: (_, at) => at.map((t) => shortTime(this.epoch, t)) },
        { ...axis, size: 40, gap: 4, splits: () => [0, 50, 100], values: (_, at) => at.map((p) => `${p} %`) },
      ],
      series: [{}, { stroke: theme.accent, width: 2, points: { show: false }, spanGaps: false }],
      hooks: { drawAxes: [(plot) => this.paintBands(plot, theme)], draw: [(plot) => this.paintThresholds(plot, theme)] },
    }, data, this.box);
  }

  splits(low, high) {
    const step = { 10: 180, 60: 1200, 360: 7200 }[this.minutes] ?? 600;
    return roundTimes(this.epoch, low, high - 0.06 * (high - low), step); // the last label has to fit
  }

  // Points [stop, shares, class, note] of a session up to a second.
  update(points, right) {
    this.right = right;
    const left = right - 60 * this.minutes;
    const kept = points.filter((point) => point[0] >= left - 5);
    const hop = kept.length > 1 ? Math.min(...kept.slice(1).map((point, i) => point[0] - kept[i][0]).filter((s) => s > 0)) : 1;
    this.undecided = [];
    const xs = [], ys = [];
    const bundle = Math.max(Math.ceil(kept.length / MOST_POINTS), 1);
    for (let at = 0; at < kept.length; at += bundle) {
      const some = kept.slice(at, at + bundle);
      const shares = some.map((point) => shareOf(point, this.places)).filter((p) => p !== null);
      const before = xs.at(-1);
      if (before !== undefined && some[0][0] - before > 3 * hop * bundle) { // windows that never were
        this.undecided.push([before, some[0][0]]);
        xs.push((before + some[0][0]) / 2);
        ys.push(null);
      }
      xs.push(some.at(-1)[0]);
      ys.push(shares.length ? 100 * Math.max(...shares) : null);
      if (!shares.length) this.undecided.push([some[0][0] - hop, some.at(-1)[0]]);
    }
    this.plot.setData(xs.length ? [xs, ys] : [[0], [null]]);
  }

  paintBands(plot, theme) {
    const { left, top, width, height } = plot.bbox;
    const inside = (seconds) => Math.max(Math.min(plot.valToPos(seconds, "x", true), left + width), left);
    for (const [start, stop] of this.undecided) {
      const [a, b] = [inside(start), inside(stop)];
      if (b > a) hatch(plot.ctx, a, top, Math.max(b - a, 2), height, theme.hatch);
    }
    plot.ctx.fillStyle = theme.red;
    for (const [start, stop] of this.alarms) {
      const [a, b] = [inside(start), inside(stop)];
      if (b > a) plot.ctx.fillRect(a, top, Math.max(b - a, 2), 5);
    }
  }

  paintThresholds(plot, theme) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.font = `600 ${11 * devicePixelRatio}px ${FONT}`;
    ctx.textAlign = "left";
    ctx.textBaseline = "bottom";
    for (const { value, words, isOn } of this.thresholds) {
      const y = Math.round(plot.valToPos(100 * value, "y", true)) + 0.5;
      ctx.strokeStyle = ctx.fillStyle = isOn ? theme.red : theme.quiet;
      ctx.lineWidth = isOn ? 1.5 : 1;
      ctx.setLineDash(isOn ? [7, 4] : [2, 4]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.fillText(words, bbox.left + 4, y - 2);
    }
    ctx.restore();
  }
}
