"use strict";
// Draws the charts, and makes tables sortable, verdicts filterable and raw numbers visible.
// Without it the report still has every verdict, table and number.

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, text) => {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  return node;
};

function tooltip(handler, event, item, value) {
  const tip = document.getElementById("tip");
  if (!value || typeof value !== "object") { tip.hidden = true; return; }
  tip.replaceChildren(...Object.entries(value).map(([key, text], row) => {
    const line = make("div");
    if (row === 0) line.append(make("b", text));
    else line.append(make("span", key + " "), document.createTextNode(text));
    return line;
  }));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + "px";
  tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 8)) + "px";
}

async function draw() {
  for (const source of all("script.spec")) {
    const place = document.getElementById(source.dataset.for);
    try {
      // ast: expressions are interpreted, so that the page needs no eval
      await vegaEmbed(place, JSON.parse(source.textContent),
        { mode: "vega-lite", renderer: "svg", actions: false, ast: true, tooltip });
      place.style.minHeight = "";
      place.dataset.drawn = "true";
    } catch (error) {
      place.textContent = "This chart could not be drawn: " + error.message;
      console.error(error);
    }
  }
  document.documentElement.dataset.charts = "done";
}

function sortable(table) {
  const heads = all("thead th", table);
  const key = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return null;
    const text = cell.dataset.v ?? cell.textContent.trim();
    const value = Number(text);
    return text === "" || Number.isNaN(value) ? text : value;
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
      rows.sort(([a], [b]) => (up ? 1 : -1) * compare(a, b));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
}

function filter(bar) {
  bar.hidden = false;
  const buttons = all("button", bar);
  buttons.forEach((button) => button.addEventListener("click", () => {
    buttons.forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
    const wanted = button.dataset.env;
    for (const row of all(".verdicts tr[data-env]")) {
      row.hidden = wanted !== "" && row.dataset.env !== wanted;
    }
    for (const body of all(".verdicts tbody")) {
      body.hidden = all("tr[data-env]", body).every((row) => row.hidden);
    }
  }));
}

function parse(text) {
  const rows = [];
  let row = [], field = "", quoted = false;
  for (let i = 0; i < text.length; i++) {
    const c = text[i];
    if (quoted) {
      if (c !== '"') field += c;
      else if (text[i + 1] === '"') { field += '"'; i++; }
      else quoted = false;
    } else if (c === '"') quoted = true;
    else if (c === ",") { row.push(field); field = ""; }
    else if (c === "\n") { row.push(field); rows.push(row); row = []; field = ""; }
    else if (c !== "\r") field += c;
  }
  return rows;
}

async function measurements() {
  const link = document.getElementById("csv");
  const packed = Uint8Array.from(atob(link.href.split(",")[1]), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function show(rows) {
  const LIMIT = 400;
  const [head, ...body] = rows;
  const wanted = document.getElementById("rawfilter").value.toLowerCase();
  const found = wanted
    ? body.filter((row) => row.join(" ").toLowerCase().includes(wanted)) : body;
  const table = make("table");
  const top = table.createTHead().insertRow();
  head.forEach((name) => { const cell = make("th", name); cell.scope = "col"; top.append(cell); });
  const lines = table.createTBody();
  for (const row of found.slice(0, LIMIT)) {
    const line = lines.insertRow();
    row.forEach((text) => line.append(make("td", text)));
  }
  const rest = found.length > LIMIT ? `, the first ${LIMIT} shown` : "";
  document.getElementById("rawcount").textContent = `${found.length} rows${rest}`;
  document.getElementById("rawrows").replaceChildren(table);
}

function raw() {
  const link = document.getElementById("csv");
  if (!("DecompressionStream" in window)) return;
  let rows = null;
  document.getElementById("rawtable").addEventListener("toggle", async () => {
    if (rows) return;
    rows = parse(await measurements());
    show(rows);
  });
  document.getElementById("rawfilter").addEventListener("input", () => rows && show(rows));
  link.addEventListener("click", async (event) => {  // unpack, for those who want plain CSV
    event.preventDefault();
    const plain = make("a");
    plain.href = URL.createObjectURL(new Blob([await measurements()], { type: "text/csv" }));
    plain.download = link.download.replace(/\.gz$/, "");
    plain.click();
    URL.revokeObjectURL(plain.href);
  });
}

function contents() {
  const links = new Map(all(".contents a").map((a) => [a.hash.slice(1), a]));
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      links.forEach((a) => a.classList.remove("here"));
      links.get(entry.target.id)?.classList.add("here");
    }
  }, { rootMargin: "-10% 0px -80% 0px" });
  all("main > section").forEach((section) => watch.observe(section));
}

addEventListener("beforeprint", () => all("details.run").forEach((d) => { d.open = true; }));
all("table.sortable").forEach(sortable);
all("[data-filter]").forEach(filter);
raw();
contents();
draw();
