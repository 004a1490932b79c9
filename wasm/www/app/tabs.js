// The row of tabs: it scrolls where it is wider than the page, and shows on which side there is more. Its
// links are reached by the keyboard, and scroll into sight: the marks are for the pointer alone.

/** Part of the row by which a press on a mark scrolls. */
const STEP = 0.7;

/** @param {HTMLElement} row the element that scrolls, between its two marks */
export function showMore(row) {
  const marks = row.parentElement.querySelectorAll(".more");
  const look = () => {
    const most = row.scrollWidth - row.clientWidth;
    for (const mark of marks) {
      mark.hidden = mark.dataset.to === "1" ? row.scrollLeft >= most - 1 : row.scrollLeft <= 1;
    }
  };
  for (const mark of marks) {
    mark.addEventListener("click", () => row.scrollBy({ left: Number(mark.dataset.to) * row.clientWidth * STEP, behavior: "smooth" }));
  }
  row.addEventListener("scroll", look, { passive: true });
  new ResizeObserver(look).observe(row);
}
