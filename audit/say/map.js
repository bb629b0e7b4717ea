/* Draws the page of `addend diff`. The element #diff has the diff's JSON document. The page's map has a row for each
 * parameter. In a row each rank and microbatch has a cell, whose colour shows how often that addend was counted. A row
 * is a canvas that is drawn when it scrolls into view, so that a page can have hundreds of parameters on hundreds of
 * ranks. */

/* KINDS maps the kind of a verdict in the document to the words of the page. cmake/causes.cmake makes it from causes.h. */
const verdictWords = (param) => KINDS[param.kind] || String(param.kind);
const isWrong = (judged) => judged.verdict === 'wrong';
const isUndecided = (judged) => judged.verdict === 'cannot_tell';
const list = (value) => (Array.isArray(value) ? value : []);
const world = (diff) => Math.max(1, Number(diff.world) || 1);
const microbatches = (diff) => Math.max(1, Number(diff.microbatches) || 1);

/* ---- how often an addend was counted ---- */

/* Returns how often the addend of a rank and microbatch was counted in the parameter's sum. Returns null if that is not
 * known, and 1 if the parameter has no counts but is right. */
function countOf(param, rank, microbatch) {
  if (!Array.isArray(param.counts)) return param.pass ? 1 : null;
  const count = list(param.counts[rank])[microbatch];
  return isNumber(count) ? count : null;
}

/* Returns the standard error of the count that countOf() returns; null if the error is not known. */
function errorOf(param, rank, microbatch) {
  const value = list(list(param.errors)[rank])[microbatch];
  return isNumber(value) ? value : null;
}

const FRACTIONS = {0.5: '½', 0.25: '¼', 0.125: '⅛', 0.75: '¾', 1.5: '1½'};

/* Returns a count as text that is short enough for a cell: an integer or a fraction if the count is within 5e-4 of one,
 * else a number with two digits. Returns '' if the count is not known. */
function countWords(count) {
  if (count === null) return '';
  const near = [...Object.keys(FRACTIONS).map(Number), 1 / 3, 2 / 3, Math.round(count)].find((value) => Math.abs(count - value) < 5e-4);
  if (near === undefined) return String(Number(count.toPrecision(2)));
  if (FRACTIONS[near]) return FRACTIONS[near];
  if (near === 1 / 3) return '⅓';
  return near === 2 / 3 ? '⅔' : String(near);
}

/* Returns how conspicuous a count is: its distance from 1, the right count. A count that is not known has the distance
 * 1/2. */
const distance = (count) => (count === null ? 0.5 : Math.abs(count - 1));

/* ---- colours ---- */

const STOPS = [[0, '--count-0'], [0.5, '--count-half'], [1, '--count-1'], [2, '--count-2'], [4, '--count-4']];
let palette = null;

function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  palette = {
    stops: STOPS.map(([count, name]) => [count, rgb(read(name))]),
    other: read('--count-other'), quiet: read('--quiet'), ink: read('--ink'), ground: read('--surface'), line: read('--line'),
    dark: read('--on-dark'), light: read('--on-light'),
  };
}

/* Returns the colour of a count as [red, green, blue], interpolated between STOPS. A count within 0.01 of 1 has the
 * neutral colour, and a negative count has a colour that is not in STOPS. The colour of any other count clearly differs
 * from the neutral one, so that nobody takes the count for 1. */
function colourParts(count) {
  const {stops} = palette;
  if (count < -0.01) return rgb(palette.other);
  if (Math.abs(count - 1) < 0.01) return stops[2][1];
  const clamped = Math.min(Math.max(count, 0), 4);
  const above = Math.max(1, stops.findIndex(([at]) => clamped <= at));
  const [[low, from], [high, to]] = [stops[above - 1], stops[above]];
  let share = (clamped - low) / (high - low);
  if (low === 1) share = 0.25 + 0.75 * share;
  if (high === 1) share = 0.75 * share;
  return from.map((part, i) => Math.round(part + (to[i] - part) * share));
}

const css = (parts) => `rgb(${parts.join(',')})`;
const isLight = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b > 140;

function hatch(context) {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 6;
  const at = tile.getContext('2d');
  at.strokeStyle = palette.quiet;
  for (const shift of [-3, 3, 9]) {
    at.moveTo(shift - 3, 6);
    at.lineTo(shift + 3, 0);
  }
  at.stroke();
  return context.createPattern(tile, 'repeat');
}

/* ---- drawing a parameter's row of cells ---- */

const powerOfTwo = (least) => 2 ** Math.max(0, Math.ceil(Math.log2(least)));

/* Returns the grid of cells of a row. Columns are ranks; if the row is too narrow, a column has several ranks
 * (`perCell`). Lines are microbatches; if the row is too low, a line has several microbatches (`perLine`). */
function measure(diff, width, height) {
  const ranks = world(diff), parts = microbatches(diff);
  const perCell = powerOfTwo(ranks / Math.max(1, Math.floor(width / 2)));
  const perLine = Math.ceil(parts / Math.max(1, Math.floor(height / 3)));
  const columns = Math.ceil(ranks / perCell), lines = Math.ceil(parts / perLine);
  return {ranks, parts, perCell, perLine, columns, lines, width: Math.min(width / columns, 72), height: height / lines};
}

function rowHeight(param, diff) {
  const lines = microbatches(diff);
  return param.pass ? Math.min(Math.max(14, 6 * lines), 60) : Math.min(Math.max(22, 15 * lines), 160);
}

/* Returns the most conspicuous count in a cell, which may have several ranks and microbatches: {rank, microbatch,
 * count}. */
function cellAt(param, grid, column, line) {
  let worst = null;
  for (let rank = column * grid.perCell; rank < Math.min((column + 1) * grid.perCell, grid.ranks); rank++) {
    for (let m = line * grid.perLine; m < Math.min((line + 1) * grid.perLine, grid.parts); m++) {
      const count = countOf(param, rank, m);
      if (!worst || distance(count) > distance(worst.count)) worst = {rank, microbatch: m, count};
    }
  }
  return worst;
}

function drawCell(context, cell, grid, column, line, pattern) {
  const ratio = devicePixelRatio || 1, onPixel = (at) => Math.round(at * ratio) / ratio;
  const x = onPixel(column * grid.width), y = onPixel(line * grid.height);
  const w = onPixel((column + 1) * grid.width) - x - (grid.width >= 6 ? 1 : 0);
  const h = onPixel((line + 1) * grid.height) - y - (grid.height >= 8 ? 1 : 0);
  const parts = cell.count === null ? null : colourParts(cell.count);
  context.fillStyle = parts ? css(parts) : pattern;
  context.fillRect(x, y, w, h);
  const words = countWords(cell.count);
  if (!parts || words === '1' || h < 11 || w < 7 * words.length + 5) return;
  context.fillStyle = isLight(parts) ? palette.light : palette.dark;
  context.fillText(words, x + w / 2, y + h / 2 + 0.5);
}

function prepare(canvas, height) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  context.font = '11px system-ui, sans-serif';
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  return context;
}

function drawStrip(strip, diff) {
  const {canvas, param} = strip;
  const height = rowHeight(param, diff), context = prepare(canvas, height), pattern = hatch(context);
  const grid = strip.grid = measure(diff, canvas.clientWidth, height);
  for (let column = 0; column < grid.columns; column++)
    for (let line = 0; line < grid.lines; line++)
      drawCell(context, cellAt(param, grid, column, line), grid, column, line, pattern);
  if (strip.at) outline(context, strip.at.column * grid.width, strip.at.line * grid.height, grid);
}

/* Draws the outline of a cell in two colours, one of which is visible on any cell. */
function outline(context, x, y, grid) {
  for (const [colour, thickness] of [[palette.ground, 4], [palette.ink, 2]]) {
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    context.strokeRect(x + 1, y + 1, Math.max(grid.width - 3, 2), Math.max(grid.height - 3, 2));
  }
}

/* Draws rank numbers above the cells, as many as there is room for. */
function drawAxis(canvas, diff) {
  const context = prepare(canvas, 16), grid = measure(diff, canvas.clientWidth, 100);
  const room = 10 + 7 * String(grid.ranks - 1).length;
  const steps = Array.from({length: 24}, (_, i) => 2 ** i);
  const step = steps.find((n) => n >= grid.perCell && (n / grid.perCell) * grid.width >= room) || grid.ranks;
  context.fillStyle = palette.quiet;
  for (let rank = 0; rank < grid.ranks; rank += step) {
    const x = (rank / grid.perCell) * grid.width + (grid.width >= room ? grid.width : room - 8) / 2;
    context.fillText(String(rank), x, 8);
  }
}

/* ---- describing the cell under the pointer ---- */

/* Returns a rank's coordinates in the mesh, such as "dp=0 tp=3". Ranks are in row-major order: the last axis varies
 * fastest. */
function coordinates(diff, rank) {
  const axes = String(diff.mesh || '').split(' ').map((axis) => axis.split('=')).filter(([, size]) => Number(size) > 0);
  const words = [];
  for (const [name, size] of axes.reverse()) {
    words.unshift(`${name}=${rank % Number(size)}`);
    rank = Math.floor(rank / Number(size));
  }
  return words.join(' ');
}

function numberWords(param, cell) {
  if (cell.count === null && isUndecided(param)) return 'how often it was counted is unknown, because another addend is the same';
  if (cell.count === null) return param.counts ? 'not known, or not wanted here' : 'not known';
  const standard = errorOf(param, cell.rank, cell.microbatch);
  const exact = Math.abs(cell.count - Math.round(cell.count)) < 1e-9 ? String(Math.round(cell.count)) : short(cell.count);
  return `counted ${exact} times${standard === null ? '' : ` ± ${error(standard)}`}`;
}

function describeCell(diff, param, cell, grid) {
  const where = coordinates(diff, cell.rank);
  const part = microbatches(diff) > 1 ? `, microbatch ${cell.microbatch}` : '';
  const most = grid.perCell * grid.perLine > 1 ? ', most of this cell' : '';
  return `${param.name}, rank ${cell.rank}${where ? ` (${where})` : ''}${part}${most}: ${numberWords(param, cell)}. ${sentence(param)}. ${aboutWords(param)}`;
}

function sentence(param) {
  const text = String(param.text || '');
  return (text.toLowerCase().startsWith(verdictWords(param)) || !text ? text || verdictWords(param) : `${verdictWords(param)}: ${text}`).replace(/\.$/, '');
}

/* Adds listeners to a row's canvas, which describe the cell under the pointer, or the cell that the arrow keys moved
 * to, in the element `spoken`. */
function listen(strip, diff, spoken) {
  const {canvas, param} = strip;
  const drawn = () => {
    if (!strip.grid) drawStrip(strip, diff);
    return strip;
  };
  const tell = (column, line) => {
    const grid = drawn().grid;
    strip.at = {column: Math.min(Math.max(column, 0), grid.columns - 1), line: Math.min(Math.max(line, 0), grid.lines - 1)};
    drawStrip(strip, diff);
    spoken.textContent = describeCell(diff, param, cellAt(param, strip.grid, strip.at.column, strip.at.line), strip.grid);
  };
  const tellPointer = (event) => {
    const box = canvas.getBoundingClientRect(), {grid} = drawn();
    const column = Math.floor((event.clientX - box.left) / grid.width);
    if (column < grid.columns) tell(column, Math.floor((event.clientY - box.top) / grid.height));
  };
  const leave = () => {
    strip.at = null;
    if (strip.grid) drawStrip(strip, diff);
  };
  canvas.addEventListener('pointermove', tellPointer);
  canvas.addEventListener('pointerdown', tellPointer);
  canvas.addEventListener('pointerleave', leave);
  canvas.addEventListener('blur', leave);
  canvas.addEventListener('keydown', (event) => {
    const [x, y] = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[event.key] || [];
    if (x === undefined) return;
    event.preventDefault();
    tell(strip.at ? strip.at.column + x : 0, strip.at ? strip.at.line + y : 0);
  });
}

/* ---- rows of parameters, grouped by verdict ---- */

/* Returns the numbers of a parameter as one line of text: types, factor, residual, and so on. */
function aboutWords(param) {
  const reference = param.reference;
  return [
    param.types,
    isNumber(param.expect) && param.expect !== 1 && `expected ×${short(param.expect)}`,
    isNumber(param.factor) && Math.abs(param.factor - 1) > 1e-3 && `${short(param.factor)} of what was expected`,
    isNumber(param.residual) && `residual ${error(param.residual)}${isNumber(param.bound) ? `, rounding allows ${error(param.bound)}` : ''}`,
    reference && `${short(reference.ratio)} of the reference${causeWords(reference) && `: ${causeWords(reference)}`}`,
    isNumber(param.sampled) && param.sampled < param.numel && `${count(param.sampled)} of ${count(param.numel)} elements`,
  ].filter(Boolean).join(' · ');
}

/* Returns the verdict's text with ": " before it. If the text begins with the kind of the verdict, the kind is left
 * out, because the page shows it already. Returns '' if there is no other text. */
function reasonWords(param) {
  const text = String(param.text || ''), start = `${verdictWords(param)}: `;
  const rest = text.startsWith(start) ? text.slice(start.length) : text === verdictWords(param) ? '' : text;
  return rest && `: ${rest}`;
}

/* Returns the text of the cause if it is certain, or of all possible causes; '' if there is none. */
function causeWords(judged) {
  const causes = judged.cause ? [judged.cause] : list(judged.possible_causes);
  return (causes.length > 1 ? 'possible causes: ' : '') + causes.map((cause) => cause.text).join('; ');
}

const ROWS_SHOWN = 3; /* in a group of at most this many parameters, each row shows its numbers */

/* Divides parameters into groups whose verdicts have the same kind, axis and text; returns a list of lists. */
function groupsOf(params) {
  const groups = new Map();
  for (const param of params) {
    const key = JSON.stringify([param.kind, param.axis, param.text]);
    groups.set(key, [...(groups.get(key) || []), param]);
  }
  return [...groups.values()];
}

/* The map of one module: its rows, and the groups that the rows belong to. A strip is {canvas, param, row, at, grid,
 * isSeen}: the canvas with a parameter's cells, the element `row` around it, the cell `at` that is described (null if
 * none is), and whether the canvas is in view. */
class CountMap {
  constructor(diff, spoken) {
    this.diff = diff;
    this.spoken = spoken;
    this.strips = [];
    this.groups = [];
    this.axes = [];
    this.byCanvas = new Map();
    this.seen = new IntersectionObserver((entries) => entries.forEach((entry) => this.show(entry)), {rootMargin: '400px'});
  }

  show(entry) {
    const strip = this.byCanvas.get(entry.target);
    strip.isSeen = entry.isIntersecting;
    if (strip.isSeen) drawStrip(strip, this.diff);
  }

  row(param, tellsNumbers) {
    const label = `${param.name}: ${verdictWords(param)}; arrow keys go through its ranks`;
    const canvas = make('canvas', {class: 'strip', tabindex: 0, role: 'img', 'aria-label': label, style: `height: ${rowHeight(param, this.diff)}px`});
    const strip = {canvas, param, at: null, grid: null, isSeen: false};
    strip.row = make('div', {class: 'row'},
      make('p', {class: 'name'}, code(param.name)), make('div', {}, canvas, tellsNumbers && make('p', {class: 'about'}, aboutWords(param))));
    this.strips.push(strip);
    this.byCanvas.set(canvas, strip);
    listen(strip, this.diff, this.spoken);
    this.seen.observe(canvas);
    return strip.row;
  }

  /* Returns the element of a group of parameters that have the same verdict. The verdict is shown once, above their
   * rows. */
  group(params) {
    const [first] = params;
    const verdict = [make('span', {class: isUndecided(first) ? 'undecided' : 'bad'}, verdictWords(first)), first.axis && [' on ', code(first.axis)], reasonWords(first)];
    const group = {params, element: make('div', {class: 'group'},
      make('p', {class: 'says'}, verdict, params.length > 1 && make('span', {class: 'quiet'}, ` (${plural(params.length, 'parameter')})`)),
      params.map((param) => this.row(param, params.length <= ROWS_SHOWN)))};
    this.groups.push(group);
    return group.element;
  }

  axis() {
    const canvas = make('canvas', {'aria-hidden': 'true'});
    this.axes.push(canvas);
    return make('div', {class: 'row axis'}, make('span', {class: 'quiet'}, 'rank'), canvas);
  }

  redraw() {
    readPalette();
    for (const canvas of this.axes) if (canvas.clientWidth) drawAxis(canvas, this.diff);
    for (const strip of this.strips) if (strip.isSeen) drawStrip(strip, this.diff);
  }

  /* Hides the rows of parameters whose names do not contain all of the words; returns how many rows remain. */
  search(words) {
    const wanted = words.trim().toLowerCase().split(/\s+/);
    let found = 0;
    for (const {row, param} of this.strips) {
      const name = String(param.name).toLowerCase();
      row.hidden = !wanted.every((word) => name.includes(word));
      found += !row.hidden;
    }
    for (const {element} of this.groups) element.hidden = !element.querySelector('.row:not([hidden])');
    return found;
  }
}

/* ---- parts of the page ---- */

function tile(name, value, context, className = null) {
  return make('div', {class: 'tile'}, make('dt', {}, name),
    make('dd', {}, make('span', {class: ['value', className].filter(Boolean).join(' ')}, value), context && make('span', {class: 'context'}, context)));
}

function normTile(norm) {
  if (!norm) return null;
  const words = norm.text || (norm.pass ? 'every element once' : null);
  return tile('Norm that the job reported', short(norm.reported), words || `of the sums: ${short(norm.computed)}`, norm.pass ? 'good' : 'bad');
}

/* Returns [text, CSS class] for the verdict on all parameters. `wrong` and `undecided` are lists of parameters. */
function wholeVerdict(diff, wrong, undecided) {
  const of = (some) => `${count(some.length)} of ${count(list(diff.params).length)}`;
  if (wrong.length) return [`DOES NOT MATCH: ${of(wrong)}`, 'bad'];
  if (isWrong(diff)) return ['DOES NOT MATCH', 'bad'];
  return undecided.length ? [`CANNOT TELL: ${of(undecided)}`, 'undecided'] : ['matches', 'good'];
}

const UNDECIDED_ADVICE = 'addends that are the same hide what was counted: give each rank its own batch, or allow it with --allow-identical';

function drawTiles(diff, wrong, undecided) {
  const all = list(diff.params).length, dumped = diff.dumped || {};
  const files = [plural(dumped.addends || 0, 'file') + ' of addends', `${count(dumped.sums || 0)} of sums`, dumped.reference && 'a reference'];
  const [verdict, look] = wholeVerdict(diff, wrong, undecided);
  const context = wrong.length ? 'hover a cell for its numbers' : undecided.length ? UNDECIDED_ADVICE : `${plural(all, 'parameter')}, each addend counted once`;
  return make('dl', {class: 'tiles'},
    tile('Parameters', verdict, context, look),
    tile('Ranks', count(world(diff)), diff.mesh),
    tile('Microbatches', count(microbatches(diff)), files.filter(Boolean).join(', ')),
    normTile(diff.norm));
}

function drawMessages(diff) {
  const messages = list(diff.messages);
  return messages.length ? make('ul', {class: 'box messages', style: 'padding-left: 34px'}, messages.map((text) => make('li', {}, text))) : null;
}

function legend() {
  const key = (count, words) => make('li', {}, make('span', {class: count === 1 ? 'key once' : 'key', 'data-count': String(count)}), words);
  return make('ul', {class: 'keys'}, key(0, 'missing'), key(0.5, 'half'), key(1, 'counted once'), key(2, 'twice'), key(4, 'four times or more'),
    make('li', {}, make('span', {class: 'key unknown'}), 'not known'));
}

function colourLegend() {
  for (const element of document.querySelectorAll('[data-count]')) element.style.background = css(colourParts(Number(element.dataset.count)));
}

function drawNorm(norm) {
  const counted = list(norm && norm.counted).filter((entry) => entry.times !== 1);
  if (!norm || (norm.pass && !counted.length)) return null;
  return make('div', {class: 'box'},
    facts([['reported', short(norm.reported)], ['of the sums', short(norm.computed)], ['', norm.text]]),
    counted.length > 0 && table([{title: 'Parameter', cell: (entry) => code(entry.name)}, {title: 'counted', number: true, cell: (entry) => `${short(entry.times)} times`}], counted));
}

function drawMap(diff, wrong, undecided, right) {
  const spoken = make('output', {class: 'spoken', 'aria-live': 'polite'}, 'Point at a cell, or go there with the arrow keys: its count, standard error and verdict.');
  const map = new CountMap(diff, spoken);
  const input = make('input', {type: 'search', placeholder: 'Find a parameter', 'aria-label': 'Find a parameter by its name'});
  const found = make('span', {class: 'quiet'});
  const folded = right.length > 0 && make('details', {class: 'right', open: !wrong.length && !undecided.length && right.length <= 100},
    make('summary', {}, `${plural(right.length, 'parameter')} right: each addend is counted once`), map.axis(), right.map((param) => map.row(param, false)));
  input.addEventListener('input', () => {
    const hits = map.search(input.value);
    found.textContent = input.value.trim() ? `${count(hits)} of ${count(map.strips.length)}` : '';
    if (folded && input.value.trim()) folded.open = map.strips.some(({row, param}) => param.pass && !row.hidden);
  });
  if (folded) folded.addEventListener('toggle', () => map.redraw());
  const box = make('div', {class: 'box map-of-counts'},
    make('div', {class: 'bar tools'}, input, found, legend()),
    wrong.length + undecided.length > 0 && [map.axis(), groupsOf([...wrong, ...undecided]).map((params) => map.group(params))], folded, spoken);
  return {box, map};
}

/* Returns the part of the page about one module. A dump has one module, or several that each have their own mesh. */
function drawDiff(diff, box, {wrong, undecided}) {
  const step = isNumber(diff.step) || typeof diff.step === 'string' ? `Step ${diff.step}, mesh ` : 'Mesh ';
  return [
    diff.module && make('h2', {class: 'module'}, 'Module ', code(diff.module)),
    make('p', {class: 'lead'}, step, diff.mesh || NONE),
    section(null, () => drawTiles(diff, wrong, undecided)),
    section(list(diff.messages).length ? 'Messages' : null, () => drawMessages(diff)),
    section('Parameters and ranks', () => box),
    section(diff.norm && !diff.norm.pass ? 'The norm' : null, () => drawNorm(diff.norm)),
  ].filter(Boolean);
}

function titleOf(whole, judged) {
  const wrong = judged.flatMap((one) => one.wrong), undecided = judged.flatMap((one) => one.undecided);
  return `${wrong.length ? `${wrong.length} wrong` : isWrong(whole) ? 'wrong' : undecided.length ? `CANNOT TELL: ${undecided.length}` : 'right'} – addend diff`;
}

function drawPage() {
  const whole = JSON.parse(document.getElementById('diff').textContent), diffs = whole.modules || [whole];
  const judged = diffs.map((diff) => {
    const params = list(diff.params);
    return {wrong: params.filter(isWrong), undecided: params.filter(isUndecided), right: params.filter((param) => param.pass)};
  });
  const maps = diffs.map((diff, i) => drawMap(diff, judged[i].wrong, judged[i].undecided, judged[i].right));
  document.title = titleOf(whole, judged);
  filled(document.getElementById('page'), {}, [
    make('h1', {}, 'How often each addend was counted'),
    ...diffs.flatMap((diff, i) => drawDiff(diff, maps[i].box, judged[i])),
  ]);
  const again = () => {
    for (const {map} of maps) map.redraw();
    colourLegend();
  };
  again();
  let waiting = 0;
  addEventListener('resize', () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(again);
  });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', again);
  const printing = (on) => {
    document.documentElement.classList.toggle('printing', on);
    again();
  };
  addEventListener('beforeprint', () => printing(true));
  addEventListener('afterprint', () => printing(false));
}

drawPage();
