/* What all pages share: making elements, and numbers in words. Text from the data enters a page only as text nodes,
 * so it is never read as markup. */
'use strict';

/* ---- elements ---- */

/* make('td', {class: 'number'}, 'text', child, ...): attributes and children that are null or false are left out. */
function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function makeSvg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== false && child !== undefined));
  return element;
}

const code = (text) => make('code', {}, text);
const codeOrNone = (text, className = null) => (text === null || text === undefined ? NONE : make('code', {class: className}, text));

/* A table. Columns are {title, cell(row), number: true for numbers}; a cell is text or an element. */
function table(columns, rows, className = null) {
  const kind = (column) => (column.number ? 'number' : column.className || null);
  const head = columns.map((column) => make('th', {scope: 'col', class: kind(column)}, column.title));
  const cell = (column, row) => make('td', {class: kind(column), 'data-title': column.title}, column.cell(row));
  const body = rows.map((row) => make('tr', {}, columns.map((column) => cell(column, row))));
  const whole = make('table', {class: className}, make('thead', {}, make('tr', {}, head)), make('tbody', {}, body));
  const label = columns.map((column) => column.title).join(', ');
  return make('div', {class: 'wide', tabindex: 0, role: 'group', 'aria-label': label}, whole);
}

function fold(summary, ...content) {
  return make('details', {}, make('summary', {}, summary), content);
}

function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');
  return make('dl', {class: 'facts'}, known.map(([name, value]) => [make('dt', {}, name), make('dd', {}, value)]));
}

/* A sentence about something missing, and the command that makes it. */
function missing(sentence, command = null) {
  return make('p', {class: 'missing'}, sentence, command && [' ', code(command)]);
}

/* A section of the page. If it cannot be drawn, for example because another version wrote the file, the other sections
 * are not affected. */
function section(title, draw) {
  let content;
  try {
    content = draw();
  } catch (error) {
    console.error(error);
    content = missing(`This part cannot be drawn: ${error.message}`);
  }
  return content && make('section', {}, title && make('h2', {}, title), content);
}

/* Shows a sentence about the element under the pointer, or chosen by the arrow keys. `words` maps the elements inside
 * the box, in order, to sentences; `spoken` is the element that shows them. */
function tellEach(box, words, spoken) {
  const elements = [...words.keys()];
  let current = null;
  const tell = (element) => {
    if (current) current.classList.remove('at');
    current = element;
    element.classList.add('at');
    spoken.textContent = words.get(element);
  };
  const tellTarget = (event) => words.has(event.target) && tell(event.target);
  box.addEventListener('pointerover', tellTarget);
  box.addEventListener('pointerdown', tellTarget);
  box.addEventListener('keydown', (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    const next = current ? elements.indexOf(current) + step : 0;
    tell(elements[Math.min(Math.max(next, 0), elements.length - 1)]);
    current.scrollIntoView({block: 'nearest', inline: 'nearest'});
  });
}

/* ---- numbers and words ---- */

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
const NONE = '–';

/* A number with about four significant digits, whatever its size. */
function short(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace('e+', 'e');
  if (size >= 1000) return value.toLocaleString('en-US', {maximumFractionDigits: 0});
  return String(Number(value.toPrecision(4)));
}

const error = (value) => (!isNumber(value) ? NONE : value === 0 ? '0' : value.toExponential(1));
const count = (value) => (isNumber(value) ? Math.round(value).toLocaleString('en-US') : NONE);
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? '' : 's'}`;
