"use strict";
// Draws the figures from the data in the page, and redraws them when a switch, the theme or the data change.
window.protolithPage = (() => {
  let data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const wantsDark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const chosen = {}; // group of figures -> the view that its switch shows
  const tip = document.getElementById("tip");
  let printing = false;

  const isDark = () => !printing && (root.dataset.theme ? root.dataset.theme === "dark" : wantsDark.matches);
  const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function recoloured(value) {
    if (Array.isArray(value)) return value.map(recoloured);
    if (typeof value !== "string") return value;
    const found = data.dark[value.slice(0, 7).toUpperCase()] ?? data.dark[value.slice(0, 7)];
    return found ? found + value.slice(7) : value;
  }

  function traces(view) {
    if (!isDark()) return view.data.map((trace) => ({ ...trace }));
    return view.data.map((trace) => {
      const changed = { ...trace };
      for (const part of ["line", "marker"]) {
        if (trace[part]) changed[part] = { ...trace[part], color: recoloured(trace[part].color) };
      }
      const edge = trace.marker?.line;
      if (edge) changed.marker.line = { ...edge, color: recoloured(edge.color) };
      if (trace.fillcolor) changed.fillcolor = recoloured(trace.fillcolor);
      return changed;
    });
  }

  function layout(view, width) {
    const ink = printing ? "#1b1f24" : variable("--ink");
    const grid = printing ? "#e3e6ea" : variable("--grid");
    const axis = { gridcolor: grid, zerolinecolor: grid, linecolor: grid, automargin: true };
    const clear = "rgba(0,0,0,0)";
    return {
      autosize: true,
      font: { family: "system-ui, 'Liberation Sans', sans-serif", size: 12, color: ink },
      paper_bgcolor: clear,
      plot_bgcolor: clear,
      margin: { l: 44, r: 12, t: 12, b: 44 },
      showlegend: false,
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, traceorder: "normal" },
      hoverlabel: { bgcolor: variable("--card"), bordercolor: grid, font: { color: variable("--ink") } },
      dragmode: touch ? false : "zoom",
      ...view.layout,
      ...(width ? { width, autosize: false } : {}),
      xaxis: { ...axis, ...(view.layout.xaxis ?? {}) },
      yaxis: { ...axis, ...(view.layout.yaxis ?? {}) },
    };
  }

  function draw(key) {
    const figure = data.figures[key];
    const place = document.getElementById(key);
    if (!figure || !place) return Promise.resolve();
    const view = figure.views[Math.min(chosen[figure.group] ?? 0, figure.views.length - 1)];
    const width = printing ? (place.closest(".panels") ? 310 : 660) : 0;
    const fresh = !place.dataset.drawn;
    const config = { responsive: true, displaylogo: false, displayModeBar: false };
    return Plotly.react(place, traces(view), layout(view, width), config).then(() => {
      if (fresh) listen(place, figure);
      place.dataset.drawn = "yes";
    });
  }

  function listen(place, figure) {
    if (!figure.thumbnails) return;
    place.on("plotly_hover", (event) => show(event, figure.thumbnails));
    place.on("plotly_unhover", hide);
  }

  function show(event, group) {
    const [picture, words] = event.points[0].customdata ?? [];
    if (words === undefined) return;
    tip.replaceChildren();
    const address = (data.thumbnails[group] ?? [])[picture];
    if (address) {
      const image = document.createElement("img");
      image.src = address;
      image.alt = "";
      tip.append(image);
    }
    tip.append(document.createTextNode(words));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.event.clientX + 14, innerWidth - box.width - 8);
    const y = Math.min(event.event.clientY + 14, innerHeight - box.height - 8);
    tip.style.left = `${Math.max(4, x)}px`;
    tip.style.top = `${Math.max(4, y)}px`;
  }

  function hide() {
    tip.hidden = true;
  }

  // One figure after the other, so that the page stays usable; the attribute tells when all are there.
  async function drawAll() {
    delete root.dataset.ready;
    for (const key of Object.keys(data.figures)) {
      await draw(key);
      await new Promise((next) => setTimeout(next));
    }
    root.dataset.ready = "yes";
  }

  function showView(group) {
    for (const part of document.querySelectorAll("[data-view]")) {
      if (part.dataset.group === group) part.hidden = Number(part.dataset.view) !== (chosen[group] ?? 0);
    }
    for (const key of Object.keys(data.figures)) if (data.figures[key].group === group) draw(key);
  }

  function update(next, parts) {
    const before = data;
    data = next;
    for (const [key, html] of Object.entries(parts)) {
      const content = document.querySelector(`#${key} .content`);
      if (content && content.dataset.html !== html) {
        content.querySelectorAll(".chart").forEach((place) => Plotly.purge(place));
        content.innerHTML = html; // made and escaped by the server, as the page itself
        content.dataset.html = html;
        content.querySelectorAll("select[data-group]").forEach(restore);
      }
    }
    const changed = Object.keys(data.figures).filter((key) => {
      const place = document.getElementById(key);
      const same = JSON.stringify(before.figures[key]) === JSON.stringify(data.figures[key]);
      return place && !(same && place.dataset.drawn);
    });
    return Promise.all(changed.map(draw));
  }

  function restore(select) {
    const index = chosen[select.dataset.group] ?? 0;
    if (index >= select.options.length) return;
    select.value = String(index);
    if (index) showView(select.dataset.group);
  }

  document.addEventListener("change", (event) => {
    const group = event.target.dataset?.group;
    if (group === undefined) return;
    chosen[group] = Number(event.target.value);
    showView(group);
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("scroll", hide, { passive: true });
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    drawAll();
  });
  wantsDark.addEventListener("change", drawAll);
  const print = (on) => () => {
    printing = on;
    if (on) root.dataset.before = root.dataset.theme ?? "";
    if (on || root.dataset.before) root.dataset.theme = on ? "light" : root.dataset.before;
    else delete root.dataset.theme;
    Object.keys(data.figures).forEach(draw);
  };
  addEventListener("beforeprint", print(true));
  addEventListener("afterprint", print(false));
  drawAll();
  return { update };
})();
