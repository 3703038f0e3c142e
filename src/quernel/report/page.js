"use strict";
// Paper cannot be unfolded: what is folded is open while the page is printed.
(() => {
  const folded = [...document.querySelectorAll("details:not([open])")];
  window.addEventListener("beforeprint", () => folded.forEach((one) => { one.open = true; }));
  window.addEventListener("afterprint", () => folded.forEach((one) => { one.open = false; }));
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
// The what-if panel: the inputs choose a point of a grid, and the quantiles predicted there are shown.
(() => {
  const panel = document.getElementById("what-if");
  if (!panel) return;
  const numbers = JSON.parse(panel.dataset.numbers);
  const inputs = [...panel.querySelectorAll("input")], outputs = [...panel.querySelectorAll("output")];
  const cells = [...panel.querySelectorAll("tbody td")], band = panel.querySelector(".range i"), middle = panel.querySelector(".range .middle");
  const all = numbers.curves.flat(2), low = Math.min(...all), span = Math.max(...all) - low || 1;
  const share = (value) => `${100 * (value - low) / span}%`;
  const show = () => {
    const at = inputs.map((input) => Number(input.value));
    outputs.forEach((output, k) => { output.textContent = numbers.labels[k][at[k]]; });
    const curve = numbers.curves[at[0]][at.length > 1 ? at[1] : 0];
    cells.forEach((cell, k) => { cell.textContent = String(Number(curve[k].toPrecision(4))); });
    band.style.left = share(curve[0]);
    band.style.width = `${100 * (curve[curve.length - 1] - curve[0]) / span}%`;
    middle.style.left = share(curve[Math.floor(curve.length / 2)]);
  };
  inputs.forEach((input) => input.addEventListener("input", show));
  panel.hidden = false;
  show();
})();
