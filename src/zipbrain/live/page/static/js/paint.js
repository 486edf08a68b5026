// Colours of the theme, and canvases as sharp as the screen.
export function colours() {
  const style = getComputedStyle(document.documentElement);
  return new Proxy({}, { get: (_, name) => style.getPropertyValue(`--${name}`).trim() });
}

// The context of a canvas whose pixels are the screen's; true as second value if its size changed.
export function fit(canvas) {
  const ratio = Math.min(devicePixelRatio || 1, 2);
  const width = Math.max(Math.round(canvas.clientWidth * ratio), 1);
  const height = Math.max(Math.round(canvas.clientHeight * ratio), 1);
  const changed = canvas.width !== width || canvas.height !== height;
  if (changed) [canvas.width, canvas.height] = [width, height];
  return { context: canvas.getContext("2d"), changed, ratio, width, height };
}

export const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'Liberation Sans', sans-serif";

// Stripes that stand for "no decision".
export function hatch(context, x, y, width, height, colour) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.beginPath();
  for (let at = x - height - (x % 7); at < x + width; at += 7) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}
