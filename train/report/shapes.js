/* Checks that the files of a run have the structure that the page can draw, since another version of addend may have
 * written them. A part that cannot be drawn is left out, and the page says so.
 *
 * A shape is a function (value, path). It returns null if the value has the right structure; otherwise it returns a
 * sentence with the path at which the first error is, such as `params[0].name`. */

/* ---- making shapes ---- */

/* Returns the shape of a value for which `fits` returns true; `what` is the noun for the sentence. */
const kindOf = (what, fits) => (value, path) => (fits(value) ? null : `${path} is no ${what}`);
const aText = kindOf('text', (value) => typeof value === 'string');
const aNumber = kindOf('number', isNumber);
const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);
const isNothing = (value) => value === null || value === undefined;

const firstOf = (sentences) => sentences.find(Boolean) || null;
/* Returns a shape that also allows null and undefined. */
const maybe = (shape) => (value, path) => (isNothing(value) ? null : shape(value, path));
/* Returns a shape that allows what either of two shapes allows. */
const either = (one, other) => (value, path) => one(value, path) && other(value, path);

const listOf = (shape) => (value, path) =>
  (Array.isArray(value) ? firstOf(value.map((own, i) => shape(own, `${path}[${i}]`))) : `${path} is no list`);

const pathOf = (path, key) => (path ? `${path}.${key}` : key);

/* Returns the shape of an object with these keys. Other keys are allowed, because a later version may write more
 * keys. */
const objectOf = (shapes) => (value, path) =>
  (isObject(value) ? firstOf(Object.entries(shapes).map(([key, shape]) => shape(value[key], pathOf(path, key)))) : `${path || 'it'} is no object`);

/* Returns the shape of an object that may have any keys, but whose values all have the same shape. */
const mapOf = (shape) => (value, path) =>
  (isObject(value) ? firstOf(Object.entries(value).map(([key, own]) => shape(own, pathOf(path, key)))) : `${path} is no object`);

/* ---- the shapes of check.json and run.json ---- */

const meshShape = either(aText, mapOf(aText));
const causeShape = objectOf({text: aText});

const checkShape = objectOf({
  params: listOf(objectOf({
    name: aText, max_rel_err: maybe(aNumber), bound: maybe(aNumber), ratio: maybe(aNumber), step: maybe(aNumber),
    cause: maybe(causeShape), layout: maybe(aText), storage: maybe(aText), reduced_over: maybe(aText),
  })),
  summary: objectOf({}), mesh: maybe(meshShape), reason: maybe(aText), directional: maybe(objectOf({})), own_dtypes: maybe(objectOf({})),
  coverage: maybe(objectOf({})),
  mutants: maybe(listOf(objectOf({
    name: aText, killed_by: aText, param: maybe(aText), message: maybe(aText), cause: maybe(causeShape),
    derived: maybe(objectOf({place: aText, operator: aText})),
  }))),
  not_applicable: maybe(listOf(objectOf({name: aText, why: maybe(aText)}))),
});

const commandShape = maybe(listOf(aText));

const runShape = objectOf({
  name: maybe(aText), kind: maybe(aText), counted: maybe(aText), recipe: maybe(aText), mesh: maybe(meshShape), steps: maybe(aNumber), ranks: maybe(aNumber),
  command: commandShape, date: maybe(aText), facts: maybe(listOf(listOf(aText))),
  changed: maybe(listOf(objectOf({key: aText, value: maybe(aText), default: maybe(aText)}))),
  starts: maybe(listOf(objectOf({command: commandShape, date: maybe(aText)}))),
  pools: maybe(listOf(objectOf({module: aText, first_rank: aNumber, ranks: aNumber}))),
});

/* ---- metrics.jsonl ---- */

const measureShape = either(aNumber, listOf(aNumber));
/* The change of the validation loss between two evaluations. */
const changeShape = objectOf({step: aNumber, change: aNumber, standard_error: aNumber, verdict: aText});
/* The values of a line that are neither numbers nor booleans nor have parts. */
const lineShapes = {
  validation_before: objectOf({loss: aNumber}), validation_since_first: changeShape, validation_since_best: changeShape,
  group_lr: listOf(maybe(aNumber)),
};

/* Returns a copy of a line of metrics.jsonl with only the values that can be drawn. Calls tell(step, sentence) for each
 * value that cannot be drawn. */
function soundLine(line, tell) {
  const sound = {};
  const keep = (to, key, value, shape, path) => {
    const wrong = maybe(shape)(value, path);
    if (wrong) tell(line.step, wrong);
    else to[key] = value;
  };
  for (const [key, value] of Object.entries(line)) {
    const parts = {losses: aNumber, measured: measureShape}[key];
    if (parts && isObject(value)) {
      sound[key] = {};
      for (const [name, own] of Object.entries(value)) keep(sound[key], name, own, parts, `${key}.${name}`);
    } else if (parts) {
      keep(sound, key, value, objectOf({}), key);
    } else if (lineShapes[key]) {
      keep(sound, key, value, lineShapes[key], key);
    } else if (typeof value !== 'boolean') {
      keep(sound, key, value, aNumber, key);
    } else {
      sound[key] = value;
    }
  }
  return sound;
}

/* Removes from run.metrics all lines without a step and all values that cannot be drawn. */
function soundMetrics(run) {
  const wrong = [];
  const tell = (step, sentence) => wrong.push(`in step ${step}, ${sentence}`);
  const lines = run.metrics.filter((line, i) => isNumber(line.step) || !wrong.push(`line ${i + 1} has no step`));
  run.metrics = lines.map((line) => soundLine(line, tell));
  if (wrong.length) say(run, 'metrics.jsonl', `${plural(wrong.length, 'value')} cannot be drawn; the first: ${wrong[0]}`);
}

/* ---- checking all files of a run ---- */

/* Records in run.broken why a file, or a part of the file, cannot be drawn. */
function say(run, file, sentence) {
  run.broken = {...run.broken, [file]: sentence};
}

/* Compares run[part], the content of a JSON file, with its shape. If they differ, sets run[part] to null and records
 * the first difference. `whose` is the command of addend that writes the file. */
function judge(run, part, shape, whose) {
  const wrong = isNothing(run[part]) ? null : shape(run[part], '');
  if (!wrong) return;
  run[part] = null;
  say(run, `${part}.json`, `it is no document of addend ${whose}: ${wrong}`);
}

function judgeFiles(run) {
  judge(run, 'check', checkShape, 'check');
  judge(run, 'run', runShape, 'train');
  soundMetrics(run);
}
