// Draws the accuracies of one's own systems and of those chosen in the table, with a legend.
const {data} = rows;
const drawn = {xs: [], ys: [], name: [], color: []};
const places = [...rows.selected.indices].filter(i => !data.is_own[i]);
Array.from(data.name).forEach((name, i) => { if (data.is_own[i]) places.push(i); });
places.filter(i => data.curve_x[i].length).forEach((i, number) => {
  drawn.xs.push(data.curve_x[i]);
  drawn.ys.push(data.curve_y[i]);
  drawn.name.push(data.name[i]);
  drawn.color.push(data.is_own[i] ? own_color : palette[number % palette.length]);
});
curves.data = drawn;
const escaped = text => text.replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);
const names = drawn.name.map((name, i) =>
  `<span><b style="color: ${drawn.color[i]}">&#9644;</b> ${escaped(name)}</span>`);
const without = places.filter(i => !data.curve_x[i].length).map(i => escaped(data.name[i]));
if (without.length)
  names.push(`<span>no accuracy over samples in the logs of ${without.join(", ")}</span>`);
legend.text = `<div style="display: flex; flex-wrap: wrap; gap: 0 1rem">${names.join("")}</div>`;
