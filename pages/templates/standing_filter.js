// Shows what the filters leave: rows, the lines of the fastest, and how many there are.
const {data} = rows;
const within = (text, value) => {
  const limits = text.trim().match(/^(\d+)$|^(\d*)\.\.(\d*)$/);
  if (!limits) return true;
  const least = Number(limits[1] || limits[2] || 0);
  const most = limits[1] ? least : (limits[3] ? Number(limits[3]) : Infinity);
  return value >= least && value <= most;
};
const any = (chosen, value) => !chosen.value.length || chosen.value.includes(value);
const words = text.value.toLowerCase();
const visible = Array.from(data.name, (name, i) => data.is_own[i] || (
  (division.value == "all" || data.division[i] == division.value)
  && any(round, data.round[i]) && any(family, data.family[i])
  && (!framework.value.length || framework.value.some(f => data.frameworks[i].includes(f)))
  && within(accelerators.value, data.accelerators[i]) && within(batch.value, data.batch[i])
  && `${name} ${data.framework[i]}`.toLowerCase().includes(words)));
row_filter.booleans = visible;
const best = new Map();
visible.forEach((shown, i) => {
  if (!shown || data.caveat[i] || !(data.accelerators[i] > 0)) return;
  const points = best.get(data.family[i]) ?? new Map();
  const known = points.get(data.accelerators[i]) ?? [Infinity];
  const found = [data.minutes[i], data.color[i]];
  if (found[0] < known[0]) points.set(data.accelerators[i], found);
  best.set(data.family[i], points);
});
const drawn = {xs: [], ys: [], color: [], family: []};
for (const [name, points] of best) {
  const ordered = [...points].sort((a, b) => a[0] - b[0]);
  drawn.xs.push(ordered.map(p => p[0]));
  drawn.ys.push(ordered.map(p => p[1][0]));
  drawn.color.push(ordered[0]?.[1][1]);
  drawn.family.push(name);
}
lines.data = drawn;
const own = data.is_own.filter(x => x).length;
const shown = visible.filter(x => x).length - own;
count.text = `${shown} of ${data.name.length - own} published results`;
