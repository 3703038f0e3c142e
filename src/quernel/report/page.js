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
