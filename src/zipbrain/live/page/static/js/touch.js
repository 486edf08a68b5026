// Fingers and the mouse on the traces: one selects, two change amplitude and time base.
const MOVED = 6; // pixels from which on a press is a selection

export function followFingers(canvas, { select, clear, setGain, setSpan }) {
  const fingers = new Map();
  let pinch = null;
  const spread = () => {
    const [a, b] = [...fingers.values()];
    return { x: Math.max(Math.abs(a.clientX - b.clientX), 30), y: Math.max(Math.abs(a.clientY - b.clientY), 30) };
  };
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event);
    canvas.setPointerCapture(event.pointerId);
    clear();
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
    } else if (Math.abs(event.offsetX - before.offsetX) > MOVED) select(before.offsetX, event.offsetX);
  });
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));
}
