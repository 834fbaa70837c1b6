// The filters, the table and the plots of a standing. Draws all anew after every change.
const {rows, points, target, own_color} = JSON.parse(
  document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const format = (value, digits = 0) => value == null ? "-" : value.toLocaleString(
  "en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
const add = (parent, name, attributes = {}, text = "", space = parent.namespaceURI) => {
  const made = parent.appendChild(document.createElementNS(space, name));
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(text);  // as text: names of foreign logs may hold anything
  return made;
};

// Which rows are shown: what the filters leave, and always one's own.
const chosen = id => [...at(`filter_${id}`).selectedOptions].map(option => option.value);
const within = (text, value) => {
  const limits = text.trim().match(/^(\d+)$|^(\d*)\.\.(\d*)$/);
  if (!limits) return true;
  const least = Number(limits[1] || limits[2] || 0);
  const most = limits[1] ? least : (limits[3] ? Number(limits[3]) : Infinity);
  return value != null && value >= least && value <= most;
};
const filtered = () => {
  const [round, family, framework] = ["round", "family", "framework"].map(chosen);
  const [division, accelerators, batch, text] = ["division", "accelerators", "batch", "text"].map(
    id => at(`filter_${id}`).value);
  const any = (list, value) => !list.length || list.includes(value);
  return rows.filter(row => row.is_own || (
    (division == "all" || row.division == division)
    && any(round, row.round) && any(family, row.family)
    && (!framework.length || framework.some(name => row.frameworks.includes(name)))
    && within(accelerators, row.accelerators) && within(batch, row.batch)
    && `${row.name} ${row.framework}`.toLowerCase().includes(text.toLowerCase())));
};

// The table: a click on a heading sorts, one on a row chooses it.
const COLUMNS = [
  ["name", "system"], ["minutes", "minutes", 2], ["accelerators", "accelerators", 0],
  ["family", "accelerator"], ["batch", "batch", 0], ["samples", "samples", 0],
  ["rate", "samples/s each", 1], ["per_watt", "per watt", 3], ["framework", "framework"],
  ["caveat", "unlike"], ["rcp", "RCP, today's checker"],
  ["rcp_unaided", "the same, counting by epoch_num"],
];
const order = {column: null, sign: 1};
const compared = (a, b) => a == null ? 1 : b == null ? -1
  : order.sign * (typeof a == "string" ? a.localeCompare(b) : a - b);
const drawTable = shown => {
  const table = at("table"), sorted = [...shown], {column} = order;
  if (column) sorted.sort((a, b) => compared(a[column], b[column]));
  table.replaceChildren();
  const head = add(add(table, "thead"), "tr"), body = add(table, "tbody");
  for (const [name, title, digits] of COLUMNS)
    add(head, "th", digits == null ? {class: "words"} : {}, title).onclick = () => {
      order.sign = order.column == name ? -order.sign : 1;
      order.column = name;
      draw();
    };
  for (const row of sorted) {
    const line = add(body, "tr", {class: row.chosen ? "chosen" : ""});
    for (const [name, , digits] of COLUMNS)
      add(line, "td", digits == null ? {class: "words"} : {},
        digits == null ? row[name] : format(row[name], digits));
    line.onclick = () => { row.chosen = !row.chosen; draw(); };
  }
};

// A plot is as wide as its place: the axes, then lines, then marks with what they say of
// themselves under the mouse.
const MARKS = {
  circle: "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", cross: "M-4,-4L4,4M4,-4L-4,4",
  square: "M-7,-7h14v14h-14zM-7,-7L7,7M7,-7L-7,7",
  star: "M0,-10L2.4,-3.1 9.5,-3.1 3.8,1.2 5.9,8.1 0,3.8 -5.9,8.1 -3.8,1.2 -9.5,-3.1 -2.4,-3.1z",
};
const HEIGHT = 420, LEFT = 58, RIGHT = 12, TOP = 8, BOTTOM = 44;
const axisOf = (values, log, fromZero) => {
  const f = log ? Math.log10 : value => value;
  let low = Infinity, high = -Infinity;
  for (const value of values.length ? values : [1, 10]) {
    low = Math.min(low, f(value));
    high = Math.max(high, f(value));
  }
  const room = 0.05 * (high - low || 1);
  low = fromZero ? 0 : low - room;
  high += room;
  const ticks = [];
  if (log)
    for (let power = Math.floor(low); power <= high; power++)
      for (const digit of high - low < 2.5 ? [1, 2, 5] : [1]) ticks.push(digit * 10 ** power);
  else {
    const power = 10 ** Math.floor(Math.log10((high - low) / 4));
    const step = power * [1, 2, 5, 10].find(digit => digit * power >= (high - low) / 6);
    for (let tick = Math.ceil(low / step); tick * step <= high; tick++) ticks.push(tick * step);
  }
  const inside = ticks.filter(tick => f(tick) >= low && f(tick) <= high);
  return {ticks: inside, share: value => (f(value) - low) / (high - low)};
};
const short = tick => tick >= 1e6 ? `${+(tick / 1e6).toPrecision(3)}M`
  : tick >= 1e4 ? `${+(tick / 1e3).toPrecision(3)}k` : `${+tick.toPrecision(3)}`;
const plot = (id, {x, y, marks, lines}) => {
  const usable = p => p.x != null && p.y != null && !(x.log && p.x <= 0) && !(y.log && p.y <= 0);
  marks = marks.filter(usable);
  const all = [...marks, ...lines.flatMap(line => line.points)];
  const axes = {x: axisOf(all.map(p => p.x), x.log), y: axisOf(all.map(p => p.y), y.log, y.zero)};
  const place = at(id), width = Math.max(place.clientWidth, 240);
  const left = value => LEFT + axes.x.share(value) * (width - LEFT - RIGHT);
  const top = value => HEIGHT - BOTTOM - axes.y.share(value) * (HEIGHT - TOP - BOTTOM);
  place.replaceChildren();
  const svg = add(place, "svg", {width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`}, "",
    "http://www.w3.org/2000/svg");
  for (const tick of axes.x.ticks) {
    add(svg, "path", {class: "grid", d: `M${left(tick)},${TOP}V${HEIGHT - BOTTOM}`});
    add(svg, "text", {x: left(tick), y: HEIGHT - 28, "text-anchor": "middle"}, short(tick));
  }
  for (const tick of axes.y.ticks) {
    add(svg, "path", {class: "grid", d: `M${LEFT},${top(tick)}H${width - RIGHT}`});
    add(svg, "text", {x: LEFT - 5, y: top(tick) + 4, "text-anchor": "end"}, short(tick));
  }
  add(svg, "text", {x: width / 2, y: HEIGHT - 8, "text-anchor": "middle"}, x.label);
  add(svg, "text", {transform: `translate(12 ${HEIGHT / 2}) rotate(-90)`,
    "text-anchor": "middle"}, y.label);
  for (const {points, color, dashed} of lines)
    if (points.length)
      add(svg, "path", {class: "line", stroke: color, "stroke-dasharray": dashed ? "6 4" : "none",
        d: `M${points.map(p => `${left(p.x)},${top(p.y)}`).join("L")}`});
  for (const {x, y, mark, color, size, chosen, words} of marks)
    add(add(svg, "path", {d: MARKS[mark], class: chosen ? "mark chosen" : "mark", fill: color,
      stroke: color, transform: `translate(${left(x)} ${top(y)}) scale(${size})`}),
      "title", {}, words);
};

const markOf = row => row.is_own ? (row.departs ? "square" : "star")
  : row.departs ? "cross" : "circle";
const wordsOf = row => [
  row.name,
  `${row.accelerators ?? "unknown number of"} accelerators: ${row.family}`,
  `batch ${format(row.batch)}`,
  `time to train ${format(row.minutes, 2)} min`,
  `samples to converge ${format(row.samples)}`,
  `samples/s per accelerator ${format(row.rate, 1)}`,
  row.framework, row.caveat, row.rcp, row.rcp_unaided,
].filter(Boolean).join("\n");
// One's own are drawn last, on top.
const ownLast = shown => [...shown].sort((a, b) => a.is_own - b.is_own);
const drawOverAccelerators = (id, shown, column, axis, lines = []) => plot(id, {
  x: {label: "accelerators", log: true}, y: axis, lines,
  marks: ownLast(shown).map(row => ({
    x: row.accelerators, y: row[column], mark: markOf(row), color: row.color, size: 1,
    chosen: row.chosen, words: wordsOf(row),
  })),
});
// A line for each accelerator through the fastest ranked result of every number.
const fastest = shown => {
  const best = {};
  for (const row of shown) {
    if (row.caveat || !row.minutes || !row.accelerators) continue;
    const known = (best[row.family] ??= {})[row.accelerators];
    if (!known || row.minutes < known.minutes) best[row.family][row.accelerators] = row;
  }
  return Object.values(best).map(byNumber => Object.values(byNumber)).map(ordered => ({
    points: ordered.map(row => ({x: row.accelerators, y: row.minutes})),
    color: ordered[0].color,
  }));
};
const drawConvergence = shown => {
  const line = (name, color, dashed) => ({
    color, dashed, points: points.map(point => ({x: point.batch, y: point[name]})),
  });
  const runs = ownLast(shown).flatMap(row => row.runs.map(run => ({
    x: row.batch, y: run.samples, mark: markOf(row), color: row.color, size: row.is_own ? 1 : 0.6,
    words: `${row.name}\nbatch ${format(row.batch)}\nsamples ${format(run.samples)}\n`
      + `minutes ${format(run.minutes, 2)}\n${row.caveat}`,
  })));
  const means = points.map(point => ({
    x: point.batch, y: point.mean, mark: "circle", color: "var(--good)", size: 1,
    words: `reference at batch ${format(point.batch)}\nmean ${format(point.mean)}\n`
      + `credible from ${format(point.least)}`,
  }));
  plot("convergence", {
    x: {label: "global batch size", log: true}, y: {label: "samples to converge"},
    lines: [line("mean", "var(--good)"), line("least", "var(--bad)", true)],
    marks: [...runs, ...means],
  });
};
const drawAccuracy = () => {
  const places = ownLast(rows.filter(row => row.is_own || row.chosen));
  const lines = places.filter(row => row.curve.length).map((row, number) => ({
    color: row.is_own ? own_color : `hsl(${20 + (number * 197.77) % 320} 70% 42%)`,
    points: row.curve.map(([x, y]) => ({x, y})), name: row.name,
  }));
  const most = Math.max(1, ...lines.flatMap(line => line.points.map(point => point.x)));
  plot("accuracy", {
    x: {label: "samples"}, y: {label: "masked-LM accuracy"},
    lines: [...lines, {
      color: "var(--bad)", dashed: true, points: [0, most].map(x => ({x, y: target})),
    }],
    marks: lines.flatMap(({points, color, name}) => points.map(({x, y}) => ({
      x, y, color, mark: "circle", size: 0.5,
      words: `${name}\nsamples ${format(x)}\naccuracy ${format(y, 4)}`,
    }))),
  });
  at("legend").replaceChildren();
  for (const {name, color} of lines) {
    const entry = add(at("legend"), "span");
    add(entry, "i", {style: `background: ${color}`});
    entry.append(name);
  }
  const without = places.filter(row => !row.curve.length).map(row => row.name);
  if (without.length)
    add(at("legend"), "span", {}, `no accuracy over samples in the logs of ${without.join(", ")}`);
};

const draw = () => {
  const shown = filtered(), others = list => list.filter(row => !row.is_own).length;
  at("count").textContent = `${others(shown)} of ${others(rows)} published results`;
  drawTable(shown);
  drawOverAccelerators("minutes", shown, "minutes", {label: "minutes", log: true}, fastest(shown));
  drawOverAccelerators("rate", shown, "rate", {label: "samples/s per accelerator", zero: true});
  drawConvergence(shown);
  drawAccuracy();
};
for (const filter of document.querySelectorAll(".filters select, .filters input"))
  filter.addEventListener("input", draw);
addEventListener("resize", draw);
draw();
