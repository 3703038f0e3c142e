"use strict";
// Paper cannot be unfolded: what is folded is open while the page is printed.
(() => {
  const folded = [...document.querySelectorAll("details:not([open])")];
  window.addEventListener("beforeprint", () => folded.forEach((one) => { one.open = true; }));
  window.addEventListener("afterprint", () => folded.forEach((one) => { one.open = false; }));
})();
// A table that is larger than its frame says so, until it has been scrolled to the end.
(() => {
  const tables = [...document.querySelectorAll(".scroll")];
  const tell = () => tables.forEach((one) => {
    if (one.scrollWidth - one.clientWidth - one.scrollLeft > 2) one.dataset.more = "scroll for more columns →";
    else delete one.dataset.more;
    let hint = one.nextElementSibling; // below the table, so that it covers no row; its place stays when it is empty
    if (!hint?.classList.contains("more")) {
      if (!one.dataset.more) return;
      hint = document.createElement("p");
      hint.className = "more";
      hint.setAttribute("aria-hidden", "true");
      one.after(hint);
    }
    hint.textContent = one.dataset.more ?? "\u00a0";
  });
  tables.forEach((one) => one.addEventListener("scroll", tell));
  window.addEventListener("resize", tell);
  document.querySelectorAll("details").forEach((one) => one.addEventListener("toggle", tell));
  tell();
})();
// One fan chart at a time: the select chooses it, and #column=2 in the address does so, too. Without a script all are shown.
(() => {
  const chooser = document.getElementById("column");
  if (!chooser) return;
  const charts = [...document.querySelectorAll(".fans figure")];
  const show = (chosen) => {
    charts.forEach((chart, k) => { chart.hidden = k !== chosen; });
    chooser.selectedIndex = chosen;
  };
  const fromAddress = () => {
    const found = /^#column=(\d+)$/.exec(location.hash);
    show(found && Number(found[1]) < charts.length ? Number(found[1]) : chooser.selectedIndex);
  };
  chooser.addEventListener("change", () => show(chooser.selectedIndex));
  window.addEventListener("hashchange", fromAddress);
  document.documentElement.classList.add("scripted");
  fromAddress();
})();
// Values at the pointer: the nearest of a chart's values, at a line through its place.
(() => {
  const note = document.createElement("div");
  note.id = "values"; note.hidden = true;
  document.body.append(note);
  document.querySelectorAll("svg[data-values]").forEach((chart) => {
    const values = JSON.parse(chart.dataset.values), line = document.createElementNS(chart.namespaceURI, "path");
    line.setAttribute("class", "pointer");
    const show = (event) => {
      const box = chart.getBoundingClientRect(), scale = box.width / chart.viewBox.baseVal.width;
      const x = (event.clientX - box.left) / scale;
      const [at, text] = values.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
      line.setAttribute("d", `M${at} 12V${chart.viewBox.baseVal.height - 44}`);
      chart.append(line);
      note.textContent = text; note.hidden = false;
      const left = box.left + at * scale, wide = note.offsetWidth;
      note.style.left = `${window.scrollX + (left + wide + 14 > window.innerWidth ? Math.max(left - wide - 8, 4) : left + 8)}px`;
      note.style.top = `${window.scrollY + box.top + 14}px`;
    };
    const hide = () => { note.hidden = true; line.remove(); };
    chart.addEventListener("pointermove", show);
    chart.addEventListener("pointerdown", show);
    chart.addEventListener("pointerleave", hide);
  });
})();
// The what-if panel: the inputs choose a point of a grid, and the quantiles predicted there are shown.
(() => {
  const panel = document.getElementById("what-if");
  if (!panel) return;
  const numbers = JSON.parse(panel.dataset.numbers);
  const inputs = [...panel.querySelectorAll("input, select")];
  const cells = [...panel.querySelectorAll(":scope > .beside > table tbody td")].reverse();
  const bands = [...panel.querySelectorAll(".range i")], middle = panel.querySelector(".range .middle");
  const [first, last] = panel.querySelectorAll(".ends span"), near = panel.querySelector(".near");
  const points = numbers.curves.flatMap((rows, i) => rows.flatMap((row, j) => row.map((value, k) => [value, numbers.texts[i][j][k]])));
  const lowest = points.reduce((a, b) => b[0] < a[0] ? b : a), highest = points.reduce((a, b) => b[0] > a[0] ? b : a);
  const low = lowest[0], span = highest[0] - low || 1;
  first.textContent = lowest[1]; last.textContent = highest[1];
  const show = () => {
    const at = inputs.map((input) => Number(input.value)), i = at[0], j = at.length > 1 ? at[1] : 0;
    inputs.forEach((input, k) => { if (input.type === "range") input.nextElementSibling.textContent = numbers.labels[k][at[k]]; });
    const curve = numbers.curves[i][j];
    cells.forEach((cell, k) => { cell.textContent = numbers.texts[i][j][k]; });
    bands.forEach((band, k) => {
      const [a, b] = numbers.bands[k];
      band.style.left = `${100 * (curve[a] - low) / span}%`;
      band.style.width = `${100 * (curve[b] - curve[a]) / span}%`;
    });
    middle.hidden = numbers.median === null;
    if (!middle.hidden) middle.style.left = `${100 * (curve[numbers.median] - low) / span}%`;
    const count = numbers.near[i][j], apart = numbers.apart[i][j], alone = !count || apart;
    near.textContent = alone ? `No row of the data is near these values${count ? ` and has ${apart}` : ""}: do not rely on this prediction.`
      : `${count.toLocaleString("en")} row${count > 1 ? "s" : ""} of the data near these values.`;
    near.classList.toggle("warn", Boolean(alone));
  };
  inputs.forEach((input) => input.addEventListener("input", show));
  panel.hidden = false;
  show();
})();
