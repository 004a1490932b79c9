// The bucket, drawn: each token a bar, the one that is coming back filled as far as it is back. A
// bucket of many tokens is drawn as a level. What is drawn stands in words beside it.

import { h } from "../common/parts.js";

const WIDTH = 220;
const HEIGHT = 300;
/** As many bars can be told apart. */
const BARS = 30;

export function bucketPicture() {
  const canvas = h("canvas", { class: "bucket-picture", role: "img", "aria-label": "The bucket; its tokens are told beside it" });
  const paint = canvas.getContext("2d");
  let colours = {};
  let drawn = "";
  let flash = null; // { isAllowed, until }

  function measure() {
    const ratio = Math.min(globalThis.devicePixelRatio || 1, 2);
    canvas.width = WIDTH * ratio;
    canvas.height = HEIGHT * ratio;
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(document.documentElement);
    colours = Object.fromEntries(["ink", "line", "card", "water", "water-edge", "admitted", "denied"]
      .map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    drawn = "";
  }

  /** A request just came: the rim shows for a moment how it went. */
  function asked(isAllowed) {
    flash = { isAllowed, until: performance.now() + 180 };
  }

  function draw(tokens, capacity) {
    if (flash && performance.now() > flash.until) {
      flash = null;
    }
    const shown = `${tokens.toFixed(4)}/${capacity}/${flash?.isAllowed}`;
    if (shown === drawn) {
      return;
    }
    drawn = shown;
    const left = 20, right = WIDTH - 20, top = 16, bottom = HEIGHT - 12;
    paint.clearRect(0, 0, WIDTH, HEIGHT);
    paint.lineJoin = "round";
    if (capacity <= BARS) {
      const step = (bottom - 8 - top) / capacity;
      const gap = Math.min(4, step * 0.2);
      for (let token = 0; token < capacity; token++) {
        const part = Math.min(Math.max(tokens - token, 0), 1);
        const y = bottom - 8 - (token + 1) * step + gap / 2;
        const inner = right - left - 16;
        paint.fillStyle = colours.line;
        paint.globalAlpha = 0.5;
        paint.fillRect(left + 8, y, inner, step - gap);
        paint.globalAlpha = part < 1 ? 0.6 : 1;
        paint.fillStyle = colours.water;
        paint.fillRect(left + 8, y, inner * part, step - gap);
        paint.globalAlpha = 1;
      }
    } else {
      const level = (bottom - 4 - top) * Math.min(tokens / capacity, 1);
      paint.fillStyle = colours.water;
      paint.fillRect(left + 5, bottom - 4 - level, right - left - 10, level);
      paint.fillStyle = colours["water-edge"];
      paint.fillRect(left + 5, bottom - 4 - level, right - left - 10, 2);
    }
    paint.strokeStyle = flash ? colours[flash.isAllowed ? "admitted" : "denied"] : colours.ink;
    paint.lineWidth = flash ? 5 : 3;
    paint.beginPath();
    paint.moveTo(left - 8, top - 8);
    paint.lineTo(left, top);
    paint.lineTo(left, bottom);
    paint.lineTo(right, bottom);
    paint.lineTo(right, top);
    paint.lineTo(right + 8, top - 8);
    paint.stroke();
  }

  measure();
  return { element: canvas, draw, asked, measure };
}
