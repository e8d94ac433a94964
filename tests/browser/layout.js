// Returns sentences about everything that a reader of the page at this width could not see or read.
(() => {
  const faults = [];
  const width = document.documentElement.clientWidth;
  const name = (element) => {
    const classes = element.getAttribute("class");
    return element.tagName.toLowerCase() + (classes ? "." + classes.trim().replace(/\s+/g, ".") : "");
  };
  if (document.documentElement.scrollWidth > width) faults.push(`the page scrolls sideways: ${document.documentElement.scrollWidth} of ${width}`);
  for (const element of document.querySelectorAll("body *")) {
    const overflow = getComputedStyle(element).overflowX;
    if (overflow !== "visible" && !(element instanceof SVGElement) && element.scrollWidth > element.clientWidth + 1) {
      faults.push(`${name(element)} scrolls sideways or is cut: ${element.scrollWidth} of ${element.clientWidth}`);
    }
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const lines = [];
  for (let node; (node = walker.nextNode());) {
    const parent = node.parentElement;
    if (!node.data.trim() || ["SCRIPT", "STYLE", "NOSCRIPT", "title"].includes(parent.tagName)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      if (box.width === 0 || box.height === 0) continue;
      const text = `"${node.data.trim().slice(0, 40)}" in ${name(parent)}`;
      if (box.left < -0.5 || box.right > width + 0.5) faults.push(`${text} is cut off: ${box.left.toFixed(1)} to ${box.right.toFixed(1)} of ${width}`);
      if (box.height < 9) faults.push(`${text} is ${box.height.toFixed(1)} pixels high`);
      const cell = parent.closest("td, th");
      if (cell) {
        const around = cell.getBoundingClientRect();
        if (box.left < around.left - 1 || box.right > around.right + 1) faults.push(`${text} leaves its cell`);
      }
      lines.push({box, text, node});
    }
  }
  // Finds texts that overlap. Sorting by height lets each pair be compared once.
  lines.sort((a, b) => a.box.top - b.box.top);
  for (let i = 0; i < lines.length; ++i) {
    for (let j = i + 1; j < lines.length && lines[j].box.top < lines[i].box.bottom; ++j) {
      const a = lines[i].box, b = lines[j].box;
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left), down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 2 && down > 0.45 * Math.min(a.height, b.height) && lines[i].node !== lines[j].node) faults.push(`${lines[i].text} and ${lines[j].text} overlap`);
    }
  }
  return faults;
})();
