/* Functions that the scripts of all pages use: they make elements and print numbers. Text from the data enters a page
 * only as text nodes, so the browser never reads it as markup. */
'use strict';

/* ---- elements ---- */

/* Returns a new HTML element. Example: make('td', {class: 'number'}, 'text', child, ...). Attributes and children that
 * are null or false are left out. Children may be elements, texts, and lists of elements and texts. */
function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/* Returns a new SVG element; attributes and children are as in make(). */
function makeSvg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

/* Sets the attributes of an element, appends the children, and returns the element. */
function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== false && child !== undefined));
  return element;
}

const code = (text) => make('code', {}, text);
const codeOrNone = (text, className = null) => (text === null || text === undefined ? NONE : make('code', {class: className}, text));

/* Returns a table with one line for each row, in a box that scrolls. A column is {title, cell(row), number, className}:
 * `cell` returns the text or element for a row, `number` is true if the cells are numbers, and className is the CSS
 * class of other cells. */
function table(columns, rows, className = null) {
  const kind = (column) => (column.number ? 'number' : column.className || null);
  const head = columns.map((column) => make('th', {scope: 'col', class: kind(column)}, column.title));
  const cell = (column, row) => make('td', {class: kind(column), 'data-title': column.title}, column.cell(row));
  const body = rows.map((row) => make('tr', {}, columns.map((column) => cell(column, row))));
  const whole = make('table', {class: className}, make('thead', {}, make('tr', {}, head)), make('tbody', {}, body));
  const label = columns.map((column) => column.title).join(', ');
  return make('div', {class: 'wide', tabindex: 0, role: 'group', 'aria-label': label}, whole);
}

/* Returns content that is folded away until a reader clicks on the summary. */
function fold(summary, ...content) {
  return make('details', {}, make('summary', {}, summary), content);
}

/* Returns a list of [name, value] pairs as an element. Pairs without a value are left out. */
function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');
  return make('dl', {class: 'facts'}, known.map(([name, value]) => [make('dt', {}, name), make('dd', {}, value)]));
}

/* Returns a paragraph with a sentence about something that is missing and, if given, the command that makes it. */
function missing(sentence, command = null) {
  return make('p', {class: 'missing'}, sentence, command && [' ', code(command)]);
}

/* Returns a section of the page with the content that `draw` returns; null or false if `draw` returns null or false. If
 * `draw` throws, for example because another version of addend wrote the file, the section shows the error, and the
 * other sections are not affected. */
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

/* Shows in the element `spoken` a sentence about one element of `box`: the one under the pointer or, after an arrow
 * key, the next or the previous one. `words` is a Map from these elements, in order, to their sentences. */
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
/* The text that is shown if there is no value. */
const NONE = '–';

/* Returns a number of any size as text with about four significant digits. */
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
