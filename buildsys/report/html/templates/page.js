"use strict";
(() => {
  const all = (selector, root) => [...(root || document).querySelectorAll(selector)];
  const units = [[31536e3, "y"], [2592e3, "mo"], [86400, "d"], [3600, "h"], [60, "min"]];
  for (const time of all("time[datetime]")) {
    const age = (Date.now() - Date.parse(time.dateTime)) / 1000;
    if (!(age >= 0)) continue;
    const unit = units.find(([seconds]) => age >= seconds);
    time.title = time.textContent;
    time.textContent = unit ? Math.floor(age / unit[0]) + " " + unit[1] + " ago" : "now";
  }
  const print = (begins) => {
    for (const one of all(begins ? "details:not([open])" : "details[data-closed]")) {
      one.open = begins;
      one.toggleAttribute("data-closed", begins);
    }
    for (const time of all("time[title]")) {
      [time.title, time.textContent] = [time.textContent, time.title];
    }
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  for (const picture of all(".zoom")) {
    const image = picture.querySelector("img");
    const width = () => image.getBoundingClientRect().width;
    const tools = document.createElement("div");
    tools.className = "tools";
    const steps = [["+", "Zoom in", 1.4], ["−", "Zoom out", 1 / 1.4], ["Fit", "Fit the width", 0]];
    for (const [name, label, factor] of steps) {
      const button = document.createElement("button");
      button.textContent = name;
      button.title = label;
      button.onclick = () => {
        image.style.maxWidth = factor ? "none" : "";
        image.style.width = factor ? width() * factor + "px" : "";
      };
      tools.append(button);
    }
    picture.before(tools);
  }
  const table = document.querySelector("table.index");
  if (!table) return;
  const body = table.tBodies[0], rows = [...body.rows], search = document.querySelector("#search");
  const chosen = { s: "", t: "" };
  const names = rows.map((row) => row.cells[0].textContent.toLowerCase());
  const apply = () => {
    const text = search.value.trim().toLowerCase();
    let count = 0;
    rows.forEach((row, n) => {
      const shown = names[n].includes(text) && (!chosen.s || row.dataset.s === chosen.s) &&
        (!chosen.t || (row.dataset.t || "").split(" ").includes(chosen.t));
      row.hidden = !shown;
      count += shown;
    });
    document.querySelector("#count").textContent = count + " of " + rows.length;
  };
  search.oninput = apply;
  for (const button of all("button[data-f]")) {
    button.onclick = () => {
      const kind = button.dataset.f, value = button.value;
      chosen[kind] = chosen[kind] === value ? "" : value;
      for (const one of all("button[data-f=" + kind + "]")) {
        one.ariaPressed = String(one.value === chosen[kind]);
      }
      apply();
    };
  }
  all("th button", table).forEach((button) => {
    const column = button.closest("th").cellIndex;
    button.onclick = () => {
      const down = button.dataset.down = button.dataset.down === "1" ? "" : "1";
      const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const keyed = rows.map((row) => [key(row), row]);
      const numeric = keyed.every(([value]) => value === "" || !isNaN(value));
      const order = (a, b) => (down ? 1 : -1) * (numeric ? a - b : a.localeCompare(b));
      keyed.sort(([a], [b]) => (a === "") - (b === "") || order(a, b));
      body.append(...keyed.map(([, row]) => row));
    };
  });
})();
