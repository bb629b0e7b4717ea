/* Draws the report of one run or several. The element #runs has their data as JSON. The library dygraphs draws the
 * charts; everything else is made of HTML and SVG elements (elements.js). */

/* ---- numbers and phrases ---- */

const loss = (value) => (isNumber(value) ? value.toFixed(4) : NONE);
const milliseconds = (seconds) => (isNumber(seconds) ? `${short(seconds * 1e3)} ms` : NONE);
const mebibytes = (bytes) => `${short(bytes / 2 ** 20)} MiB`;

/* Returns a word in the form in which a shell reads it as one word: in quotes if necessary. */
function shellWord(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, "'\\''")}'`;
}

const shellLine = (words) => (words || []).map(shellWord).join(' ');

function meshText(mesh) {
  if (!mesh || typeof mesh === 'string') return mesh || '';
  return Object.entries(mesh).map(([module, text]) => `${module}: ${text}`).join('; ');
}

const placedMeshText = (own) => (own.pools ? `${meshText(own.mesh)}, on ranks of their own` : meshText(own.mesh));

/* Returns a paragraph that a file is missing from the run's folder or, if run.broken has a reason, why the file cannot
 * be used. `sentence` and a command that writes the file follow. */
function missingFile(run, file, sentence, command) {
  const reason = run.broken && run.broken[file];
  return missing(`${reason ? `${file} cannot be used: ${reason}` : `${file} is missing`}. ${sentence}`, command);
}

const ownName = (run) => (run.run && run.run.name) || run.folder;

/* Sets run.name of all runs. If several runs have the same name in run.json, they are called by their folders
 * instead. */
function nameRuns(runs) {
  const names = runs.map(ownName);
  runs.forEach((run, i) => { run.name = names.indexOf(names[i]) === names.lastIndexOf(names[i]) ? names[i] : run.folder; });
}

const dateWords = (date) => String(date).replace(/^(\d+-\d+-\d+)T(\d+:\d+)(:\d+)?(\.\d+)?Z$/, '$1 $2 UTC');

/* Returns the shell command that checks this run's recipe with the same `--set` options as the run had. */
function checkCommand(run) {
  const words = (run.run && run.run.command) || [];
  const kept = words.filter((word, i) => /^(-s|--set)$/.test(words[i - 1]) || /^(-s|--set)/.test(word));
  const recipe = words.find((word) => /\.ya?ml$/.test(word)) || 'RECIPE';
  return shellLine(['addend', 'check', recipe, ...kept, '--out', `${run.folder}/check.json`]);
}

function resumeCommand(run) {
  const words = (run.run && run.run.command) || ['addend', 'train', 'RECIPE', '--out', run.folder];
  return shellLine(words.filter((word) => !/^(-r|--resume|--overwrite)$/.test(word)).concat('--resume'));
}

/* ---- statistics ---- */

/* Returns a quantile of a sorted list, interpolated between neighbours; null if the list is empty. `share` is from 0 to
 * 1: the median has 0.5. */
function quantile(sorted, share) {
  if (!sorted.length) return null;
  const place = share * (sorted.length - 1), low = Math.floor(place), high = Math.ceil(place);
  return sorted[low] + (sorted[high] - sorted[low]) * (place - low);
}

const sortedNumbers = (values) => values.filter(isNumber).sort((a, b) => a - b);
const median = (values) => quantile(sortedNumbers(values), 0.5);

const itself = (value) => value;

/* Returns the index of the first element that is not less than `value`, or the list's length if there is none. The list
 * is sorted by of(element). */
function placeIn(sorted, value, of = itself) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (of(sorted[middle]) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* Returns the index of the element that is nearest to `value`. The list is sorted by of(element). */
function nearest(sorted, value, of = itself) {
  const after = Math.min(placeIn(sorted, value, of), sorted.length - 1), before = Math.max(after - 1, 0);
  return value - of(sorted[before]) < of(sorted[after]) - value ? before : after;
}

/* The quantiles that describe a window of values: a band goes from the first to the last, with a line at the middle
 * one. */
const SPREAD = [0.1, 0.5, 0.9];

/* Returns over how many values a curve of `length` values is smoothed: a fortieth of them, from 5 to 201. The number is
 * odd, so that each value is the middle of its window. */
const windowOf = (length) => 2 * Math.floor(Math.min(Math.max(length / 40, 5), 201) / 2) + 1;

/* Returns over how many values the curves of the loss and of the norm are smoothed: 1 for a short run, so that each
 * step is shown as it is; otherwise windowOf(length). */
const calmWindowOf = (length) => (length < 400 ? 1 : windowOf(length));

/* Returns for each value the three SPREAD quantiles of the `width` values around it, or three nulls if none of these
 * values is a number. `sorted` has the numbers of the present window. */
function rollingSpread(values, width) {
  const half = (width - 1) / 2, sorted = [];
  const add = (value) => isNumber(value) && sorted.splice(placeIn(sorted, value), 0, value);
  const drop = (value) => isNumber(value) && sorted.splice(placeIn(sorted, value), 1);
  values.slice(0, half).forEach(add);
  return values.map((_, i) => {
    if (i + half < values.length) add(values[i + half]);
    if (i - half - 1 >= 0) drop(values[i - half - 1]);
    return sorted.length ? SPREAD.map((share) => quantile(sorted, share)) : [null, null, null];
  });
}

/* ---- the results of a run, and the tiles that show them ---- */

/* Returns the values of a key, one for each line of metrics.jsonl; undefined for a line without the key. */
const column = (run, key) => run.metrics.map((line) => line[key]);

/* Returns how many steps the run has taken. The step of the last line gives this number. The number of lines does not,
 * because the page of a long run has only some lines of metrics.jsonl. */
function stepsTaken(run) {
  return run.metrics.length ? run.metrics[run.metrics.length - 1].step + 1 : 0;
}

/* Returns true if the run took fewer steps than its recipe asks for: it is in flight, or was stopped or killed. */
const isUnfinished = (run) => Boolean(run.run) && stepsTaken(run) < run.run.steps;
const partWords = (run) => `${count(stepsTaken(run))} of ${count(run.run.steps)} steps`;

function lastLineWith(run, key) {
  return [...run.metrics].reverse().find((line) => isNumber(line[key]));
}

/* Returns the verdict of a check in the same words as the commands use (core/include/addend/verdict.h). `holds` is true
 * if everything that was checked is right. */
function verdictWords(check, holds) {
  if (holds) return 'matches';
  if (check.reason) return check.summary && check.summary.pass ? 'cannot tell' : 'not checked';
  const fails = [check.summary, check.own_dtypes, check.directional].some((part) => part && part.pass === false);
  return fails ? 'does not match' : 'cannot tell';
}

/* Returns the verdict on a run as {holds, words, context}. `holds` is true or false, or null if the run has no
 * check.json; `context` is a phrase with details. */
function verdict(run) {
  const check = run.check;
  if (!check) return {holds: null, words: 'none', context: run.broken && run.broken['check.json'] ? 'check.json is broken' : 'no check.json'};
  const holds = check.holds === undefined ? Boolean(check.summary && check.summary.pass) : check.holds;
  return {holds, words: verdictWords(check, holds), context: verdictContext(check, holds)};
}

/* Returns a phrase with the most important detail of a check: why there is no verdict, what is wrong, or how well the
 * gradients match. */
function verdictContext(check, holds) {
  if (check.reason) return check.reason;
  const failed = check.params.filter((param) => !paramHolds(param)).length;
  if (failed) return `${failed} of ${plural(check.params.length, 'parameter')} wrong`;
  if (check.survivors) return `${plural(check.survivors, 'mutant')} survived`;
  if (check.params.length && check.directional && check.directional.pass === false) return 'the gradient is not the slope of the loss';
  if (!holds) return 'see below';
  if (check.directional && !check.params.length) return `directional, error ${error(check.directional.rel_err)}`;
  const reached = check.summary.reached === undefined ? check.summary.params : check.summary.reached;
  return `${plural(reached, 'parameter')}, worst ${error(check.summary.worst_rel_err).replace('-', '\u2011')}`;
}

/* Returns the tiles of a run as a list of {title, value, context, tone}. If the page shows several runs, `runs` lists
 * all of them, and the titles fit them all. */
function tilesOf(run, runs = [run]) {
  return [checkTile(run), lossTile(run), validationTile(run), speedTile(run, runs), ranksTile(run)];
}

function checkTile(run) {
  const {holds, words, context} = verdict(run);
  return {title: 'Check', value: words, context, tone: holds === null ? 'quiet' : holds ? 'good' : 'bad'};
}

/* Returns the lines of metrics.jsonl that have a loss, except those of steps in which no token counted: their loss
 * means nothing. */
const linesWithLoss = (run) => run.metrics.filter((line) => isNumber(line.loss) && line.tokens !== 0);

/* Returns the mean loss of the first tenth of the lines, or of the last tenth; null if there are no lines. The page
 * shows means, because the loss of a single step varies by chance with the batch. */
function tenthOf(lines, isLast) {
  const width = Math.ceil(lines.length / 10), part = isLast ? lines.slice(-width) : lines.slice(0, width);
  return part.length ? sum(part.map((line) => line.loss)) / part.length : null;
}

function lossTile(run) {
  const lines = linesWithLoss(run), guess = run.run && run.run.uniform_loss, value = loss(tenthOf(lines, true));
  const means = lines.length > 10 ? `mean of the last tenth; of the first: ${loss(tenthOf(lines, false))}` : lines.length > 1 ? `the last step; the first: ${loss(lines[0].loss)}` : null;
  if (isUnfinished(run)) return {title: 'Loss so far', value, context: [`after ${partWords(run)}`, means].filter(Boolean).join('; ')};
  return {title: 'Final loss', value, context: [means, isNumber(guess) && `a uniform guess: ${loss(guess)}`].filter(Boolean).join('; ')};
}

function validationTile(run) {
  const last = lastLineWith(run, 'validation_loss');
  if (!last) return {title: 'Validation loss', value: NONE, context: 'not measured', tone: 'quiet'};
  const where = isNumber(last.validation_samples) ? `, ${plural(last.validation_samples, 'sample')}` : '';
  const context = [`at step ${count(last.step)}${where}`, ...changeWords(last, run.metrics[0].validation_before)].join('; ');
  return {title: 'Validation loss', value: validationWords(last), context};
}

const validationWords = (line) => loss(line.validation_loss) + (isNumber(line.validation_standard_error) ? ` ± ${loss(line.validation_standard_error)}` : '');

/* Returns a phrase about one change of the validation loss. `addend train` judged whether the change is noise, from the
 * losses of single samples, which the page does not have. `name` is added to the phrase. */
function changeText(change, name) {
  const when = change.step < 0 ? 'before the first step' : `at step ${count(change.step)}`;
  const size = `${loss(Math.abs(change.change))} ± ${loss(change.standard_error)}`;
  return `${size} ${change.change < 0 ? 'lower' : 'higher'} than ${when}${name}${change.verdict === 'noise' ? ': no change beyond noise' : ''}`;
}

/* Returns phrases that compare the last evaluation with the first one and with the best one before it. If
 * `addend train` did not judge the change, the list has only the loss before the first step, or nothing. */
function changeWords(last, before) {
  const first = last.validation_since_first, best = last.validation_since_best;
  if (!first) return before ? [`${loss(before.loss)} before the first step`] : [];
  const words = [changeText(first, '')];
  if (!best || best.step === first.step) return words;
  return words.concat({lower: 'the best', noise: 'no other is better beyond noise'}[best.verdict] || changeText(best, ', the best'));
}

/* Returns the name of the things that the program counts in a step, such as "tokens" or "rows"; "tokens" if run.json
 * has no name. */
const countedIn = (run) => (run.run && run.run.counted) || 'tokens';
const countedInAll = (runs) => [...new Set(runs.map(countedIn))].join(' or ');

function speedTile(run, runs) {
  const sorted = sortedNumbers(column(run, 'tokens_per_second')), counted = countedInAll(runs);
  const [low, middle, high] = SPREAD.map((share) => quantile(sorted, share));
  const context = sorted.length ? `10–90 %: ${count(low)} to ${count(high)}` : null;
  return {title: `${counted[0].toUpperCase()}${counted.slice(1)} per second`, value: count(middle), context};
}

function ranksTile(run) {
  const own = run.run || {}, ranks = own.ranks || (run.check && run.check.world);
  return {title: 'Ranks', value: count(ranks), context: placedMeshText(own) || null};
}

function tileValue(tile) {
  return [make('span', {class: `value ${tile.tone || ''}`}, tile.value), make('span', {class: 'context'}, tile.context)];
}

function tilesForOne(run) {
  return make('dl', {class: 'tiles'}, tilesOf(run).map((tile) =>
    make('div', {class: 'tile'}, make('dt', {}, tile.title), make('dd', {}, tileValue(tile)))));
}

/* Returns the tiles of several runs as a table with a row for each run. `switches` has a check box for each run, which
 * shows or hides the run's curves. If a run is unfinished, the titles are those of this run's tiles ("Loss so far"),
 * which fit all runs. */
function tilesForMany(runs, switches) {
  const titles = tilesOf(runs.find(isUnfinished) || runs[0], runs).map((tile) => tile.title);
  const first = {title: 'Run', cell: (i) => make('label', {class: 'value'}, switches[i], swatch(i, false), runs[i].name)};
  const others = titles.map((title, k) => ({title, cell: (i) => tileValue(tilesOf(runs[i])[k])}));
  return make('div', {class: 'box'}, table([first, ...others], runs.map((_, i) => i), 'runs'));
}

/* ---- charts ---- */

const TONES = 8;
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const toneVariable = (tone) => `--series-${tone % TONES}`;

function swatch(tone, dashed) {
  return make('span', {class: dashed ? 'swatch dashed' : 'swatch', style: `border-color: var(${toneVariable(tone)})`});
}

/* Returns the specs of the charts of training. A spec is an object that describes one chart:
 *   title, unit   the heading, and the unit that follows it
 *   size          'large' or 'small', which are CSS classes; undefined for a size between them
 *   curves        a list of {label, of(run), other(run), points}: `of` returns a list with a value for each line of
 *                 metrics.jsonl; `other` returns a list of other values, for example without smoothing; `points` is
 *                 true if each value is marked with a dot
 *   otherwise     the label of a check box that shows the values of `other` instead of those of `of`; null without
 *                 such a box
 *   units         the text after each value of the readout, for [`of`, `other`]
 *   axes          the labels of the vertical axis, for [`of`, `other`]; `unit` where there is none
 *   bands         true if each value is [low, middle, high], which is drawn as a line in a band
 *   log           true if there is a check box for a logarithmic axis
 *   logAtFirst    true if the axis is logarithmic at first
 *   fromZero      true if the vertical axis includes 0
 *   level         the value at which a dashed line is drawn across the chart
 *   note          a sentence below the chart
 *   absent        the sentence that is shown instead of the chart if no line has a value
 *   optional      true if a chart without values is left out, and no sentence is shown */
function chartSpecs(runs) {
  return [lossSpec(runs), rateSpec(runs), normSpec(runs), throughputSpec(runs), reductionsSpec(runs), scaleSpec];
}

const valuesOf = (key) => (run) => column(run, key);
/* `bare` and `smooth` return the `of` of a curve with bands: a function that returns [low, middle, high] for each line
 * of a run. For `bare` these are three times value(line); for `smooth` they are the SPREAD quantiles of the values
 * around the line. */
const bare = (value) => (run) => run.metrics.map(value).map((own) => [own, own, own]);
const smooth = (value, widthOf) => (run) => rollingSpread(run.metrics.map(value), widthOf(run.metrics.length));

/* Returns a sentence that explains how curves are smoothed; null if no curve is. */
function smoothedNote(runs, widthOf) {
  const widths = [...new Set(runs.map((run) => widthOf(run.metrics.length)))].filter((width) => width > 1);
  const all = runs.every((run) => (run.metrics_every || 1) === 1);
  if (!widths.length) return null;
  return `Line: the median of ${widths.join(' or ')} ${all ? 'steps' : 'of the steps shown'}. Band: their 10 % to 90 % quantiles.`;
}

function lossSpec(runs) {
  const note = smoothedNote(runs, calmWindowOf);
  const training = {label: 'training', of: smooth((line) => line.loss, calmWindowOf), other: bare((line) => line.loss)};
  const validation = {label: 'validation', of: bare((line) => line.validation_loss), other: bare((line) => line.validation_loss), points: true};
  const unit = runs.every((run) => run.run && isNumber(run.run.uniform_loss)) ? `nats per ${countedInAll(runs).replace(/s\b/g, '')}` : undefined;
  return {
    title: 'Loss', unit, size: 'large', log: true, bands: true, note, otherwise: note && 'every step',
    curves: [training, validation],
  };
}

/* The learning rate of the run. For one run with groups of parameters also the rate of each entry of its groups, counted
 * from 1 in the recipe's order; a frozen entry has none. */
function rateSpec(runs) {
  const curve = (i) => ({label: `groups, entry ${i + 1}`, of: (run) => run.metrics.map((line) => (line.group_lr || [])[i])});
  const entries = runs.length === 1 ? runs[0].metrics.flatMap((line) => [...(line.group_lr || []).keys()].filter((i) => isNumber(line.group_lr[i]))) : [];
  const curves = [{label: 'rate', of: valuesOf('lr')}, ...[...new Set(entries)].filter((i) => i < TONES).map(curve)];
  return {title: 'Learning rate', size: 'small', log: true, curves};
}

function normSpec(runs) {
  const norm = {label: 'norm', of: smooth((line) => line.norm, calmWindowOf), other: bare((line) => line.norm)};
  const otherwise = smoothedNote(runs, calmWindowOf) && 'every step';
  const absent = 'metrics.jsonl has no norm.';
  return {title: 'Gradient norm', size: 'small', log: true, bands: true, otherwise, curves: [norm], absent};
}

function throughputSpec(runs) {
  const unit = `${countedInAll(runs)} per second`;
  const rate = {label: unit, of: smooth((line) => line.tokens_per_second, windowOf)};
  const note = smoothedNote(runs, windowOf);
  return {title: 'Throughput', unit, bands: true, fromZero: true, note, curves: [rate]};
}

function reductionsSpec(runs) {
  const per = (key, whole) => smooth((line) => (isNumber(line[key]) ? line[key] / whole(line) : null), windowOf);
  const inMilliseconds = (key) => per(key, () => 1e-3);
  const share = (key) => per(key, (line) => line.seconds / 100);
  const curve = (label, key) => ({label, of: inMilliseconds(key), other: share(key)});
  return {
    title: 'Reductions', unit: 'time per step', bands: true, fromZero: true, units: [' ms', ' %'], axes: ['ms per step', '% of the step'], otherwise: 'as share of the step',
    curves: [curve('waited for', 'wait_seconds'), curve('under way', 'reduction_seconds')],
    note: `Means over the ranks; what is waited for is not hidden behind compute. ${smoothedNote(runs, windowOf)}`,
    absent: 'metrics.jsonl does not tell how long reductions took: it is of an older version.',
  };
}

const scaleSpec = {title: 'Loss scale', log: true, optional: true, curves: [{label: 'scale', of: valuesOf('loss_scale')}]};

/* ---- charts of single losses, and of what the program measures ---- */

/* Maps the last word of a measure's name to [title, unit]; the name blocks.1.moe.tokens ends in "tokens". The title of
 * any other measure is its name. */
const MEASURES = {
  tokens: ['Tokens per expert', 'of all choices'],
  dropped: ['Dropped choices', 'share of all'],
  imbalance: ['Imbalance', 'times an even share'],
};

/* The quantiles that are drawn of a list with many entries, as [label, share]. */
const PLACES = [['most', 1], ['upper quartile', 0.75], ['median', 0.5], ['lower quartile', 0.25], ['least', 0]];

const sum = (values) => values.reduce((all, value) => all + value, 0);
const partOf = (part, name) => (line) => (line[part] || {})[name];
const listsOf = (name, runs) => runs.flatMap((run) => run.metrics.map(partOf('measured', name))).filter(Array.isArray);
const namesIn = (part, runs) => [...new Set(runs.flatMap((run) => run.metrics.flatMap((line) => Object.keys(line[part] || {}))))];

/* Returns a list: the spec of the chart that shows each loss, then a spec for each measure. Measures that are numbers
 * precede measures that are lists, because such a number, for example the imbalance of experts, describes a list. */
function measureSpecs(runs) {
  const names = namesIn('measured', runs), isList = (name) => listsOf(name, runs).length > 0;
  const inOrder = [...names.filter((name) => !isList(name)), ...names.filter(isList)];
  return [lossesSpec(runs), ...inOrder.map((name) => measureSpec(name, runs))];
}

function lossesSpec(runs) {
  const curve = (name) => ({label: name, of: smooth(partOf('losses', name), calmWindowOf), other: bare(partOf('losses', name))});
  const note = smoothedNote(runs, calmWindowOf);
  return {
    title: 'Each loss', size: 'small', log: true, logAtFirst: true, bands: true, optional: true, note, otherwise: note && 'every step',
    curves: namesIn('losses', runs).map(curve),
  };
}

function measureSpec(name, runs) {
  const value = partOf('measured', name);
  const [words, unit] = MEASURES[name.split('.').pop()] || [name, null];
  const title = words === name || !name.includes('.') ? words : `${words}, ${layerOf(name)}`;
  const common = {title, unit, size: 'small'};
  const lengths = [...new Set(listsOf(name, runs).map((list) => list.length))];
  return lengths.length ? listSpec(common, value, lengths, runs) : numberSpec(common, value, runs);
}

function numberSpec(common, value, runs) {
  const curve = {label: common.title.toLowerCase(), of: smooth(value, windowOf)};
  return {...common, bands: true, fromZero: true, note: smoothedNote(runs, windowOf), curves: [curve]};
}

/* Returns the spec of a measure that is a list. The chart shows each entry's share of the list's sum. If there is one
 * run and at most TONES entries, each entry has a curve. Otherwise the curves are quantiles of the shares; with several
 * runs they are the largest and the smallest share. */
function listSpec(common, value, lengths, runs) {
  const level = lengths.length === 1 ? 100 / lengths[0] : null;
  const note = level && `Dashed across: an even share, ${short(level)} %.`;
  const axes = [`% ${common.unit || 'of all'}`];
  return {...common, fromZero: true, level, units: [' %'], axes, note, curves: listCurves(value, Math.max(...lengths), runs.length)};
}

function listCurves(value, length, runCount) {
  if (runCount === 1 && length <= TONES) return [...Array(length).keys()].map((i) => entryCurve(value, i));
  const places = runCount === 1 ? PLACES : [PLACES[0], PLACES[PLACES.length - 1]];
  return places.map(([label, at]) => placeCurve(label, value, at));
}

const entryCurve = (value, i) => ({label: `#${i}`, of: medians((line) => shares(value(line))[i])});
const placeCurve = (label, value, at) => ({label, of: medians((line) => quantile(sortedNumbers(shares(value(line))), at))});
const medians = (value) => (run) => smooth(value, windowOf)(run).map((spread) => spread[1]);

/* Returns the entries' shares of the list's sum, in percent. Returns [] if `list` is no list, because a line of
 * metrics.jsonl may have a single number where other lines have a list, or if its sum is not positive. */
function shares(list) {
  const whole = Array.isArray(list) ? sum(list) : 0;
  return whole > 0 ? list.map((value) => (100 * value) / whole) : [];
}

/* Returns the steps of all runs, in order, each step once. All charts have a row for each of these steps. */
function allSteps(runs) {
  return [...new Set(runs.flatMap((run) => column(run, 'step')))].sort((a, b) => a - b);
}

/* Returns the series of a chart. A series is one curve of one run. With one run each curve has its own colour (`tone`);
 * with several runs each run has its own colour, and all its curves but the first are dashed. */
function seriesOf(spec, runs) {
  const many = runs.length > 1;
  return runs.flatMap((run, i) => spec.curves.map((curve, k) => ({
    run, index: i, curve, values: curve.of(run), tone: many ? i : k, dashed: many && k > 0,
    label: many ? `${run.name}${spec.curves.length > 1 ? `, ${curve.label}` : ''}` : curve.label,
  })));
}

const isEmpty = (value) => (Array.isArray(value) ? !isNumber(value[1]) : !isNumber(value));

/* Returns the rows that dygraphs draws: [step, value of the first series, value of the second series, ...]. If
 * `otherwise` is true, the values are those of curve.other instead of curve.of. */
function rowsOf(spec, allSeries, steps, otherwise) {
  const nothing = spec.bands ? [null, null, null] : null;
  const columns = allSeries.map(({run, curve, values}) => {
    const own = otherwise ? curve.other(run) : values;
    return new Map(run.metrics.map((line, i) => [line.step, isEmpty(own[i]) ? nothing : own[i]]));
  });
  return steps.map((step) => [step, ...columns.map((values) => (values.has(step) ? values.get(step) : nothing))]);
}

function colours(allSeries) {
  const colors = allSeries.map((series) => style(toneVariable(series.tone)));
  return {colors, gridLineColor: style('--grid'), axisLineColor: style('--line')};
}

/* Returns dygraphs' options for each series. dygraphs needs unique names of series, and labels may be equal, so the
 * name of a series is its number. */
function seriesOptions(allSeries) {
  return Object.fromEntries(allSeries.map((series, k) => [String(k), {
    strokePattern: series.dashed ? [5, 3] : null,
    drawPoints: Boolean(series.curve.points),
    pointSize: series.curve.points ? 2.5 : 1,
  }]));
}

/* Returns the label of the vertical axis: spec.axes, else the unit, else "no unit". */
function axisWords(spec, otherwise) {
  const words = (spec.axes || [])[Number(otherwise)];
  return words || spec.unit || 'no unit';
}

function options(allSeries, spec, group) {
  return {
    xlabel: 'step',
    ylabel: axisWords(spec, false),
    labels: ['step', ...allSeries.map((_, k) => String(k))],
    series: seriesOptions(allSeries),
    customBars: Boolean(spec.bands),
    connectSeparatedPoints: true,
    legend: 'never',
    includeZero: Boolean(spec.fromZero),
    logscale: Boolean(spec.logAtFirst),
    strokeWidth: 1.5,
    fillAlpha: allSeries.length > 3 ? 0.08 : 0.18,
    highlightCircleSize: 3.5,
    axes: {
      x: {drawGrid: false, axisLabelFormatter: (step) => (Number.isInteger(step) ? count(step) : '')},
      y: {axisLabelWidth: 68, /* pixels, which include ylabel */ axisLabelFormatter: (value) => short(value)},
    },
    highlightCallback: (event, step) => group.select(nearest(group.steps, step)),
    unhighlightCallback: () => group.row >= 0 && group.select(-1),
    drawCallback: (drawn) => group.follow(drawn),
    underlayCallback: (canvas, area, graph) => isNumber(spec.level) && drawLevel(canvas, area, graph.toDomYCoord(spec.level)),
    interactionModel: touchable(group),
    ...colours(allSeries),
  };
}

/* Draws a dashed line across a chart, y pixels below the upper edge of the canvas. */
function drawLevel(canvas, area, y) {
  canvas.save();
  canvas.strokeStyle = style('--quiet');
  canvas.setLineDash([4, 4]);
  canvas.beginPath();
  canvas.moveTo(area.x, y);
  canvas.lineTo(area.x + area.w, y);
  canvas.stroke();
  canvas.restore();
}

/* Returns dygraphs' interaction model with touch: one finger moves the cursor, and two fingers zoom along the steps. A
 * finger that moves up or down scrolls the page (`touch-action` in page.css). */
function touchable(group) {
  const usual = Dygraph.defaultInteractionModel;
  const point = (event, graph) => {
    const left = graph.graphDiv.getBoundingClientRect().left;
    group.select(nearest(group.steps, graph.toDataXCoord(event.touches[0].clientX - left)));
  };
  return {
    mousedown: usual.mousedown,
    dblclick: usual.dblclick,
    willDestroyContextMyself: true,
    touchstart(event, graph, context) {
      if (event.touches.length === 1) return point(event, graph);
      usual.touchstart(event, graph, context);
      context.touchDirections = {x: true, y: false};
    },
    touchmove(event, graph, context) {
      if (event.touches.length === 1) point(event, graph);
      else usual.touchmove(event, graph, context);
    },
  };
}

/* A chart with more rows than this draws only some of them: about this many. */
const DRAWN_ROWS = 2000;
const stepOfRow = (row) => row[0];

/* Returns the rows of a long run that are drawn between the steps `low` and `high`. The rows there are divided into
 * stretches; of each stretch the rows are kept in which a series is lowest or highest, so that every spike is seen. The
 * first and the last row of the run are always kept, so that dygraphs knows the full range of steps. */
function thinned(rows, low, high) {
  const from = Math.max(placeIn(rows, low, stepOfRow) - 1, 0), to = Math.min(placeIn(rows, high, stepOfRow) + 2, rows.length);
  const kept = new Set([0, rows.length - 1]);
  const series = rows[0].length - 1, stretch = Math.max(Math.ceil(((to - from) * 2 * series) / DRAWN_ROWS), 1);
  for (let begin = from; begin < to; begin += stretch) {
    for (let k = 1; k <= series; k++) keepExtremes(rows, begin, Math.min(begin + stretch, to), k, kept);
  }
  return [...kept].sort((a, b) => a - b).map((row) => rows[row]);
}

/* Adds to `kept` the rows from `begin` to before `end` in which column k is lowest and highest. */
function keepExtremes(rows, begin, end, k, kept) {
  let lowest = -1, highest = -1;
  for (let row = begin; row < end; row++) {
    const value = valueAt(rows, row, k);
    if (!isNumber(value)) continue;
    if (lowest < 0 || value < valueAt(rows, lowest, k)) lowest = row;
    if (highest < 0 || value > valueAt(rows, highest, k)) highest = row;
  }
  if (lowest >= 0) kept.add(lowest).add(highest);
}

/* One chart of the page. `allSeries` has its series, and `rows` has the values of curve.other if `otherwise` is true,
 * else those of curve.of. `graph` is dygraphs' object; it is null until start() is called. */
class Chart {
  constructor(spec, allSeries, group) {
    Object.assign(this, {spec, allSeries, group, otherwise: false, graph: null});
    this.rows = rowsOf(spec, allSeries, group.steps, false);
  }

  get unit() { return (this.spec.units || ['', ''])[Number(this.otherwise)]; }

  figure() {
    const {spec} = this;
    this.readout = readout(this);
    this.plot = make('div', {class: 'chart', role: 'img', tabindex: 0, 'aria-label': spokenChart(this)});
    const controls = [
      spec.log && toggle('log', (on) => this.graph.updateOptions({logscale: on}), spec.logAtFirst),
      spec.otherwise && toggle(spec.otherwise, (on) => this.showOther(on)),
    ];
    const caption = captionOf(spec, [this.readout.step, controls]), note = spec.note && make('p', {class: 'note'}, spec.note);
    return make('figure', {class: `box ${spec.size || ''}`}, caption, this.readout.values, this.plot, note);
  }

  /* Draws the chart. The figure must be in the page already, because dygraphs reads the size of its element. */
  start() {
    const steps = this.group.steps;
    this.drawn = this.rowsIn(steps[0], steps[steps.length - 1]);
    this.graph = new Dygraph(this.plot, this.drawn, options(this.allSeries, this.spec, this.group));
    this.plot.addEventListener('keydown', (event) => this.group.key(event, this.graph));
    this.readout.tell(-1);
  }

  rowsIn(low, high) {
    return this.rows.length > DRAWN_ROWS ? thinned(this.rows, low, high) : this.rows;
  }

  /* Shows the steps from `low` to `high`. Nothing is drawn again if neither the range nor the rows changed. */
  show(low, high) {
    const [ownLow, ownHigh] = this.graph.xAxisRange(), rows = this.rowsIn(low, high), changes = {};
    if (ownLow !== low || ownHigh !== high) changes.dateWindow = [low, high];
    if (rows !== this.drawn) changes.file = this.drawn = rows;
    if (Object.keys(changes).length) this.graph.updateOptions(changes);
  }

  showOther(on) {
    this.otherwise = on;
    this.rows = rowsOf(this.spec, this.allSeries, this.group.steps, on);
    this.graph.updateOptions({ylabel: axisWords(this.spec, on)});
    this.show(...this.graph.xAxisRange());
    this.readout.tell(this.group.row);
  }

  select(row) {
    if (row < 0) this.graph.clearSelection();
    else this.graph.setSelection(nearest(this.drawn, this.group.steps[row], stepOfRow));
    this.readout.tell(row);
  }
}

/* The charts of the page, which share their steps, cursor and zoom. `row` is the index in `steps` of the step under the
 * cursor, or -1 if there is no cursor; `busy` is true while the group itself changes its charts. */
class Group {
  constructor(steps) {
    Object.assign(this, {steps, charts: [], row: -1, busy: false});
  }

  add(chart) {
    this.charts.push(chart);
    return chart;
  }

  start() { this.each((chart) => chart.start()); }

  select(row) {
    this.row = row;
    for (const chart of this.charts) chart.select(row);
  }

  /* Zooms all charts to the steps that one chart shows. dygraphs calls this whenever it has drawn a chart, so after
   * each zoom by mouse, by touch or by a script. */
  follow(graph) {
    if (this.busy) return;
    const [low, high] = graph.xAxisRange();
    this.each((chart) => chart.show(low, high));
  }

  /* Calls `act` for each chart. Meanwhile follow() does nothing, since otherwise each chart that is drawn would zoom
   * the others again. */
  each(act) {
    this.busy = true;
    for (const chart of this.charts) act(chart);
    this.busy = false;
  }

  reset() {
    this.each(({graph}) => graph.resetZoom());
    this.follow(this.charts[0].graph);
  }

  recolour() { this.each(({graph, allSeries}) => graph.updateOptions(colours(allSeries))); }

  resize() { this.each(({graph}) => graph.resize()); }

  setVisible(run, visible) {
    this.each(({graph, allSeries}) => {
      const changed = allSeries.flatMap((series, k) => (series.index === run ? [[k, visible]] : []));
      graph.setVisibility(Object.fromEntries(changed));
    });
  }

  /* Handles a key: left and right move the cursor by one step, or with shift by ten; plus and minus zoom around the
   * cursor; 0 and Escape reset the zoom. */
  key(event, graph) {
    const last = this.steps.length - 1, stride = event.shiftKey ? 10 : 1;
    const move = {ArrowRight: stride, ArrowLeft: -stride}[event.key], zoom = {'+': 0.5, '-': 2}[event.key];
    if (move) this.select(Math.min(Math.max(this.row + move, 0), last));
    else if (zoom) this.zoom(graph, zoom);
    else if (event.key === '0' || event.key === 'Escape') this.reset();
    else return;
    event.preventDefault();
  }

  zoom(graph, factor) {
    const [low, high] = graph.xAxisRange(), middle = this.row < 0 ? (low + high) / 2 : this.steps[this.row];
    const from = Math.max(middle - (middle - low) * factor, this.steps[0]);
    const to = Math.min(middle + (high - middle) * factor, this.steps[this.steps.length - 1]);
    if (to > from) graph.updateOptions({dateWindow: [from, to]});
  }
}

/* Returns the value in column k of a row; of a value with a band its middle. */
function valueAt(rows, row, k) {
  const value = rows[row][k];
  return Array.isArray(value) ? value[1] : value;
}

/* Returns the last row, up to `row`, that has a value in column k. Returns 0 if no row up to there has one. */
function rowUpTo(rows, row, k) {
  while (row > 0 && isEmpty(rows[row][k])) row--;
  return row;
}

/* Returns {step, values, tell}: two elements, and a function tell(row) that writes the step and the values of a row
 * into them. If `row` is -1, the last value of each series is shown. The validation loss is measured only at some
 * steps; at any other step the readout shows its last value so far and the step of that value. */
function readout(chart) {
  const {allSeries, group} = chart;
  const step = make('span', {class: 'quiet step'});
  const values = allSeries.map(() => make('b'));
  const names = allSeries.map((series, k) => make('span', {}, swatch(series.tone, series.dashed), series.label, ' ', values[k]));
  const tell = (row) => {
    const at = row < 0 ? group.steps.length - 1 : row;
    step.textContent = row < 0 ? 'last' : `step ${count(group.steps[at])}`;
    values.forEach((element, k) => {
      const own = row < 0 || allSeries[k].curve.points ? rowUpTo(chart.rows, at, k + 1) : at;
      const value = valueAt(chart.rows, own, k + 1), earlier = row >= 0 && own < at ? ` (step ${count(group.steps[own])})` : '';
      element.textContent = isNumber(value) ? short(value) + chart.unit + earlier : NONE;
    });
  };
  return {step, values: make('div', {class: 'readout'}, names), tell};
}

function toggle(label, act, isOn = false) {
  const box = make('input', {type: 'checkbox', checked: isOn});
  box.addEventListener('change', () => act(box.checked));
  return make('label', {}, box, label);
}

function captionOf(spec, more) {
  return make('figcaption', {}, make('h3', {}, spec.title), spec.unit && make('span', {class: 'quiet'}, spec.unit), more);
}

function chartFigure(spec, runs, group) {
  const present = seriesOf(spec, runs).filter((series) => !series.values.every(isEmpty));
  return present.length ? group.add(new Chart(spec, present, group)).figure() : absentFigure(spec);
}

function absentFigure(spec) {
  if (spec.optional) return null;
  const sentence = spec.absent || 'metrics.jsonl has no such number.';
  return make('figure', {class: `box ${spec.size || ''}`}, captionOf(spec, null), missing(sentence));
}

function spokenChart({spec, allSeries, rows}) {
  const ends = allSeries.map((series, k) => {
    const first = rows.findIndex((row) => !isEmpty(row[k + 1]));
    const last = rowUpTo(rows, rows.length - 1, k + 1);
    return `${series.label} from ${short(valueAt(rows, first, k + 1))} to ${short(valueAt(rows, last, k + 1))}`;
  });
  return `${spec.title}: ${ends.join('; ')}`;
}

/* Returns a paragraph for each run in which metrics.jsonl has values that cannot be drawn. */
function wrongMetrics(runs) {
  const named = (run) => (runs.length > 1 ? ` of ${run.name}` : '');
  const wrong = runs.filter((run) => run.broken && run.broken['metrics.jsonl']);
  return wrong.map((run) => missing(`Of metrics.jsonl${named(run)}, ${run.broken['metrics.jsonl']}.`));
}

function drawCharts(runs, group) {
  if (!group.steps.length) return [missing('No step was taken yet: metrics.jsonl has none.'), wrongMetrics(runs)];
  const reset = make('button', {type: 'button'}, 'Reset zoom');
  reset.addEventListener('click', () => group.reset());
  const hint = make('span', {class: 'hint'}, 'Drag to zoom, shift-drag to move, double-click to reset.');
  return [
    make('div', {class: 'bar'}, reset, hint), wrongMetrics(runs),
    chartsOf(chartSpecs(runs), runs, group),
  ];
}

/* Returns the charts of single losses and measures; false if no run has several losses or a measure. */
function drawMeasures(runs, group) {
  const specs = measureSpecs(runs).filter((spec) => spec.curves.length);
  return specs.length > 0 && chartsOf(specs, runs, group);
}

function chartsOf(specs, runs, group) {
  return make('div', {class: 'charts'}, specs.map((spec) => chartFigure(spec, runs, group)));
}

/* ---- the timeline: an early and a late step on all ranks ---- */

/* Maps each kind of span in trace.json that is drawn to the CSS class that colours it, in the order of the legend. */
const KINDS = {
  'read batch': 'read', forward: 'forward', backward: 'backward', 'backward of weights': 'weights', 'wait for bucket': 'wait',
  'wait for value': 'idle', 'wait for gradient': 'idle', 'wait for room': 'idle',
  'loss and norm': 'norm', update: 'update', reduction: 'reduction',
};
/* Maps a kind of span to the noun for span.index, which numbers microbatches or buckets. The index of any other kind is
 * not shown. */
const NUMBERED = {
  forward: 'microbatch', backward: 'microbatch', 'backward of weights': 'microbatch', 'wait for value': 'microbatch', 'wait for gradient': 'microbatch',
  'wait for room': 'microbatch', 'wait for bucket': 'bucket', reduction: 'bucket',
};
const COMPUTE_HEIGHT = 20, REDUCTION_HEIGHT = 5, GAP = 2;
/* A number is drawn in spans that are longer than this share of the longest step; a shorter span has no room for it. */
const NUMBER_SHARE = 0.012;

const isShown = (span) => span.kind in KINDS && span.end > span.begin;

function drawTimeline(run) {
  const timeline = run.timeline;
  const whence = 'Training writes it when it ends or is stopped, not when it is killed. This goes on:';
  if (!timeline) return missingFile(run, 'trace.json', whence, resumeCommand(run));
  const steps = timeline.steps.map((step) => stepOf(timeline, step)).filter((step) => step.spans.length);
  if (!steps.length) return missing('trace.json has no whole step.');
  const longest = Math.max(...steps.map((step) => step.seconds));
  const spoken = make('output', {class: 'spoken'}, 'Point at a span, or focus a step and use the arrow keys.');
  const lanes = steps.map((step) => stepLanes(step, longest, spoken));
  return make('div', {class: 'box'}, kindKeys(steps), lanes, pipelineWords(steps), spoken, drawPools(run));
}

function pipelineWords(steps) {
  const words = 'Numbers: microbatches. Paler: every second one of the stages that a rank has.';
  return steps.some((step) => step.stages > 1) && make('p', {class: 'quiet'}, words);
}

/* Returns a table with the share of time in which each pool's ranks are idle, and a note on the table. A pool is the
 * ranks of one module, on which no other module runs. Returns null if the run has no pools. */
function drawPools(run) {
  const pools = run.run && run.run.pools, idle = run.timeline.idle;
  if (!pools || !idle) return null;
  const shares = (pool) => sortedNumbers(idle.slice(pool.first_rank, pool.first_rank + pool.ranks));
  const mean = (values) => (values.length ? `${count((100 * sum(values)) / values.length)} %` : NONE);
  const columns = [
    {title: 'Module', cell: (pool) => code(pool.module)},
    {title: 'Ranks', cell: (pool) => `${pool.first_rank} to ${pool.first_rank + pool.ranks - 1}`},
    {title: 'Idle', number: true, cell: (pool) => mean(shares(pool))},
  ];
  const words = 'Idle: the share of all steps in trace.json, on average over a module’s ranks, in which they wait for values or ' +
    'gradients of the other ranks, for room to send more, or for the loss and the norm at a step’s end.';
  return [table(columns, pools), make('p', {class: 'quiet'}, words)];
}

/* Returns the step with its spans, in seconds since the first of them began: {step, stages, ranks, spans, seconds}.
 * `stages` is the number of pipeline stages, which is 1 without a pipeline. */
function stepOf(timeline, step) {
  const spans = timeline.spans.filter((span) => span.step === step && isShown(span));
  const origin = Math.min(...spans.map((span) => span.begin));
  const moved = spans.map((span) => ({...span, begin: span.begin - origin, end: span.end - origin}));
  const stages = 1 + Math.max(0, ...moved.map((span) => span.stage || 0));
  return {step, stages, ranks: timeline.ranks, spans: moved, seconds: Math.max(...moved.map((span) => span.end))};
}

function kindKeys(steps) {
  const present = new Set(steps.flatMap((step) => step.spans.map((span) => span.kind)));
  const names = Object.keys(KINDS).filter((kind) => present.has(kind));
  const namesOf = (colour) => names.filter((kind) => KINDS[kind] === colour).join(', ');
  const colours = [...new Set(names.map((kind) => KINDS[kind]))];
  return make('ul', {class: 'keys'}, colours.map((colour) => make('li', {}, make('span', {class: `key ${colour}`}), namesOf(colour))));
}

function stepLanes(step, longest, spoken) {
  const words = new Map();
  const ranks = [...Array(step.ranks).keys()].map((rank) => {
    const spans = step.spans.filter((span) => span.rank === rank);
    return [make('span', {}, `rank ${rank}`), rankLane(spans, step.stages, longest, words)];
  });
  const label = `Step ${count(step.step)}: ${milliseconds(step.seconds)}`;
  const lanes = make('div', {class: 'lanes', tabindex: 0, role: 'group', 'aria-label': label}, ranks, make('span'), timeAxis(longest));
  tellEach(lanes, words, spoken);
  return [make('h3', {}, label, waitWords(step)), lanes];
}

function waitWords(step) {
  const waited = step.spans.filter((span) => span.kind.startsWith('wait for')).reduce((sum, span) => sum + span.end - span.begin, 0);
  return make('span', {class: 'quiet'}, `, of which a rank waits ${milliseconds(waited / step.ranks)} on average`);
}

/* Returns an SVG drawing of one rank in one step, and adds a sentence for each span to the Map `words`. Compute is in
 * the upper line, reductions are below it, and reductions that overlap each other are in different lines. In a pipeline
 * a pass shows the number of its microbatch if there is room, and every second stage of the rank is paler. */
function rankLane(spans, stages, longest, words) {
  const compute = spans.filter((span) => span.kind !== 'reduction'), reductions = spans.filter((span) => span.kind === 'reduction');
  const lines = inLines(reductions);
  const height = COMPUTE_HEIGHT + lines.length * (REDUCTION_HEIGHT + GAP);
  const ground = makeSvg('rect', {class: 'ground', width: '100%', height: COMPUTE_HEIGHT});
  const svg = makeSvg('svg', {height, 'aria-hidden': 'true'}, ground);
  const draw = (span, y, rectHeight) => {
    const rect = spanRect(span, longest, y, rectHeight);
    words.set(rect, spanWords(span, stages));
    svg.append(rect);
    return rect;
  };
  const passes = compute.filter((span) => stages > 1 && 'stage' in span), own = [...new Set(passes.map((span) => span.stage))].sort((a, b) => a - b);
  compute.forEach((span) => {
    const rect = draw(span, 0, COMPUTE_HEIGHT);
    if (own.indexOf(span.stage) % 2 === 1) rect.classList.add('turn');
  });
  passes.filter((span) => (span.end - span.begin) / longest > NUMBER_SHARE).forEach((span) => svg.append(passNumber(span, longest)));
  lines.forEach((line, i) => {
    const y = COMPUTE_HEIGHT + GAP + i * (REDUCTION_HEIGHT + GAP);
    line.forEach((span) => draw(span, y, REDUCTION_HEIGHT));
  });
  return svg;
}

/* Divides spans into lines so that the spans in a line do not overlap. Returns a list of lines, which are lists of
 * spans. Each span goes to the first line that is free when the span begins, or to a new line. */
function inLines(spans) {
  const lines = [];
  for (const span of [...spans].sort((a, b) => a.begin - b.begin)) {
    const free = lines.find((line) => line[line.length - 1].end <= span.begin);
    if (free) free.push(span);
    else lines.push([span]);
  }
  return lines;
}

const percent = (share) => `${(100 * share).toFixed(4)}%`;

function spanRect(span, longest, y, height) {
  const width = Math.max((span.end - span.begin) / longest, 0.0008);
  return makeSvg('rect', {class: KINDS[span.kind], x: percent(span.begin / longest), width: percent(width), y, height});
}

/* Returns the number of a pass's microbatch as SVG text at the right end of the pass. At its left end a pass may wait
 * for a value or gradient, and the span of that wait is drawn over it. */
function passNumber(span, longest) {
  return makeSvg('text', {class: 'number', x: percent(span.end / longest), dx: -2, y: 14, 'text-anchor': 'end'}, `${span.index}`);
}

function spanWords(span, stages) {
  const stage = stages > 1 && 'stage' in span ? `stage ${span.stage}, ` : '';
  const name = stage + (NUMBERED[span.kind] ? `${NUMBERED[span.kind]} ${span.index}, ` : '');
  const bytes = span.bytes ? `, ${count(span.bytes)} bytes` : '';
  return `rank ${span.rank}: ${span.kind}, ${name}${milliseconds(span.end - span.begin)} from ${milliseconds(span.begin)} on${bytes}`;
}

/* Returns the time axis below a step, with three to five marks at round numbers of milliseconds. */
function timeAxis(longest) {
  const raw = (longest * 1e3) / 5, power = 10 ** Math.floor(Math.log10(raw));
  const stride = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= raw);
  const svg = makeSvg('svg', {height: 22, 'aria-hidden': 'true'});
  for (let i = 0; i * stride <= longest * 1e3 * 0.97; i++) {
    const x = percent((i * stride) / (longest * 1e3));
    const words = makeSvg('text', {x, y: 18, 'text-anchor': i ? 'middle' : 'start'}, `${short(i * stride)} ms`);
    svg.append(makeSvg('line', {x1: x, x2: x, y1: 0, y2: 5}), words);
  }
  return svg;
}

/* ---- judging the parameters of a check ---- */

/* Returns true if a parameter's gradient matches one process within the bound, its replicas are equal, and there is no
 * cause of an error. */
function paramHolds(param) {
  return isNumber(param.max_rel_err) && param.max_rel_err <= param.bound && param.replicas_equal === true &&
    !causesOf(param).length;
}

/* Returns the causes of a wrong parameter or of a mutant's effect: a list with the one cause that is certain, or with
 * all causes that are possible; an empty list if none is known. */
const causesOf = (judged) => (judged.cause ? [judged.cause] : judged.possible_causes || []);
const causeWords = (judged) => (causesOf(judged).length > 1 ? 'possible causes: ' : '') + causesOf(judged).map((cause) => cause.text).join('; ');

/* ---- the lines that a run of the ocr program read (result.json) ---- */

/* Compares the letters of `read` with those of `text`, by the fewest edits. Returns a list of [letter, state]: 'right'
 * and 'wrong' are states of letters in `read`; 'missing' is the state of a letter of `text` that is not in `read`. */
function marked(text, read) {
  const cost = [...Array(text.length + 1)].map((_, i) => [...Array(read.length + 1)].map((__, j) => (i ? (j ? 0 : i) : j)));
  for (let i = 1; i <= text.length; i++)
    for (let j = 1; j <= read.length; j++)
      cost[i][j] = Math.min(cost[i - 1][j - 1] + (text[i - 1] !== read[j - 1]), cost[i - 1][j] + 1, cost[i][j - 1] + 1);
  const letters = [];
  for (let i = text.length, j = read.length; i || j;) {
    const same = i && j && text[i - 1] === read[j - 1];
    if (i && j && cost[i][j] === cost[i - 1][j - 1] + !same) letters.push([read[--j], same ? 'right' : 'wrong', i--]);
    else if (j && cost[i][j] === cost[i][j - 1] + 1) letters.push([read[--j], 'wrong']);
    else letters.push([text[--i], 'missing']);
  }
  return letters.reverse();
}

/* Returns a canvas with the picture of a line of text that the encoder read. `pixels` is base64 with a byte for each
 * pixel: 0 is white, 255 is black. */
function drawPicture({width, height, pixels, text}) {
  const canvas = make('canvas', {width, height, class: 'line', role: 'img', 'aria-label': `a picture of: ${text}`});
  const image = canvas.getContext('2d').createImageData(width, height), bytes = atob(pixels);
  for (let i = 0; i < width * height; i++) image.data.set([...Array(3).fill(255 - bytes.charCodeAt(i)), 255], 4 * i);
  canvas.getContext('2d').putImageData(image, 0, 0);
  return canvas;
}

const readLetter = ([letter, how]) => (how === 'right' ? letter : make(how === 'wrong' ? 'mark' : 'del', {}, letter));

function drawSample(sample) {
  const words = make('span', {class: 'letters'}, ...marked(sample.text, sample.read).map(readLetter));
  return make('li', {}, drawPicture(sample), words, sample.validation_font && make('small', {}, 'validation font'));
}

const wrongShare = (share) => (isNumber(share) ? `${(100 * share).toFixed(1)} %` : NONE);

function drawReading(run) {
  const result = run.result;
  if (!result || !Array.isArray(result.samples)) return null;
  const other = isNumber(result.validation_font) ? `, ${wrongShare(result.validation_font)} of those in the validation font` : '';
  const sentence = `${plural(result.lines, 'line')} that nobody trained on, letter by letter: ${wrongShare(result.character_error_rate)} of the ` +
    `characters are wrong${other}; of empty pictures, where only the text can be guessed, ${wrongShare(result.blank)}. ` +
    'A wrong letter is marked, a missing one struck out.';
  return [make('p', {}, sentence), make('ul', {class: 'readings'}, ...result.samples.map(drawSample))];
}

/* ---- the continuations of the prompts (samples.jsonl) ---- */

const isSample = (line) => isNumber(line.step) && typeof line.prompt === 'string' && Array.isArray(line.tokens);

/* Returns a prompt and its continuation: text directly after the prompt, or token numbers after a space if the run has
 * no text. */
function drawFollowed({prompt, tokens, text}) {
  const hasText = typeof text === 'string';
  return make('p', {}, make('b', {}, prompt), hasText ? text : ` ${tokens.join(' ')}`);
}

function drawSamples(run) {
  const lines = (run.samples || []).filter(isSample);
  if (!lines.length) return null;
  const steps = [...new Set(lines.map((line) => line.step))];
  const box = make('div', {class: 'texts', tabindex: 0, role: 'group', 'aria-label': 'prompts and what follows them'});
  const choose = (step) => box.replaceChildren(...lines.filter((line) => line.step === step).map(drawFollowed));
  const select = make('select', {}, steps.map((step) => make('option', {value: step}, count(step))));
  select.value = steps[steps.length - 1];
  select.addEventListener('change', () => choose(Number(select.value)));
  choose(steps[steps.length - 1]);
  const note = 'Each prompt and, after it, the most probable token time and again.';
  return [make('div', {class: 'bar'}, make('label', {}, 'Step ', select), make('span', {class: 'hint'}, note)), box];
}

/* ---- the components that a run of the decompose program found (result.json) ---- */

/* Maps each key of `cross_entropy` in result.json to the words of its row, in the order of the table. `largest` and
 * `random` are baselines: passes with components that were not learned, which the learned ones should beat. */
const MASKED_BY = {
  target: 'the target itself',
  unmasked: 'all components',
  stochastic: 'each masked at random between its importance and 1',
  masked: 'each masked by its importance',
  rounded: 'only those of importance above',
  largest: 'of random components as many, those that do most',
  random: 'of random components as many',
  unigram: 'how often each byte is in the text',
  uniform: 'a uniform guess',
};

function drawDecomposition(run) {
  const result = run.result;
  if (!result || !result.cross_entropy || !Array.isArray(result.sites)) return null;
  return [
    make('p', {}, decompositionWords(result)),
    make('div', {class: 'box'}, make('h3', {}, 'What it costs to leave the others out'), entropyTable(result)),
    make('div', {class: 'box'}, make('h3', {}, 'How many are needed'), sitesTable(result)),
    make('div', {class: 'box'}, make('h3', {}, 'Where they are needed'), drawComponents(result)),
  ];
}

function decompositionWords({active, components, positions, sites, relative_error}) {
  return `On ${plural(positions, 'position')} of text that nobody trained on, ${brief(active.above_zero)} of ${plural(components, 'component')} ` +
    `in ${sites.length === 1 ? 'one matrix' : `${count(sites.length)} matrices`} are needed at a position on average; ${count(active.alive)} are needed anywhere. ` +
    `Their sum differs from the matrices by ${shareWords(relative_error)} of their size.`;
}

const brief = (value) => (isNumber(value) ? short(Number(value.toPrecision(3))) : NONE);
const shareWords = (share) => (isNumber(share) ? `${brief(100 * share)} %` : NONE);

/* Returns a bar whose length is this share of the full width. */
const meter = (share, className = null) =>
  make('div', {class: `meter ${className || ''}`, 'aria-hidden': 'true'}, make('div', {style: `width: ${percent(Math.min(Math.max(share, 0), 1))}`}));

function entropyTable({cross_entropy, divergence, threshold}) {
  const names = Object.keys(MASKED_BY).filter((name) => isNumber(cross_entropy[name]));
  const most = Math.max(...names.map((name) => cross_entropy[name]));
  const words = (name) => MASKED_BY[name] + (name === 'rounded' ? ` ${short(threshold)}` : '');
  const columns = [
    {title: 'what remains', className: 'remains', cell: words},
    {title: 'cross-entropy', number: true, cell: (name) => loss(cross_entropy[name])},
    {title: 'nats a byte', className: 'metered', cell: (name) => meter(cross_entropy[name] / most, name)},
    {title: 'KL from target', number: true, cell: (name) => brief((divergence || {})[name])},
  ];
  return table(columns, names);
}

function sitesTable({sites, threshold}) {
  const of = (site, key) => (site.active || {})[key];
  const columns = [
    {title: 'matrix', className: 'name', cell: (site) => code(site.name)},
    {title: 'size', className: 'name', cell: (site) => `${count(site.in)} × ${count(site.out)}`},
    {title: 'components', number: true, cell: (site) => count(site.components)},
    {title: 'active', number: true, cell: (site) => brief(of(site, 'above_zero'))},
    {title: 'of all', className: 'metered', cell: (site) => meter(of(site, 'above_zero') / site.components, 'masked')},
    {title: `above ${short(threshold)}`, number: true, cell: (site) => brief(of(site, 'above_threshold'))},
    {title: 'ever active', number: true, cell: (site) => count(of(site, 'alive'))},
    {title: '‖W − VU‖ / ‖W‖', number: true, cell: (site) => shareWords(site.relative_error)},
  ];
  const words = 'Active: of importance above 0, on average at a position.';
  return [table(columns, sites), make('p', {class: 'note'}, words)];
}

/* Returns the text that is shown for each byte. Bytes that are one character in UTF-8 show it at the first byte, and ''
 * at its other bytes. A byte that cannot be seen shows a mark. */
function glyphsOf(bytes) {
  const glyphs = [];
  while (glyphs.length < bytes.length) {
    const [glyph, length] = glyphAt(bytes, glyphs.length);
    glyphs.push(glyph, ...Array(length - 1).fill(''));
  }
  return glyphs;
}

const UNSEEN = {9: '⇥', 10: '⏎\n'};

/* Returns [text, length] for the byte at an index: the text to show, and how many bytes the text represents. */
function glyphAt(bytes, at) {
  const byte = bytes[at], length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
  if (UNSEEN[byte]) return [UNSEEN[byte], 1];
  try {
    const text = new TextDecoder('utf-8', {fatal: true}).decode(new Uint8Array(bytes.slice(at, at + length)));
    return /^[^\p{C}\p{M}]$/u.test(text) ? [text, length] : ['·', 1];
  } catch {
    return ['·', 1];
  }
}

const hexOf = (byte) => `0x${byte.toString(16).padStart(2, '0')}`;
const byteWords = (byte) => (byte > 32 && byte < 127 ? `“${String.fromCharCode(byte)}”` : byte === 32 ? 'a space' : `byte ${hexOf(byte)}`);
const hundredth = (value) => (value / 100).toFixed(2);

/* Returns the part of the page in which a reader chooses a matrix and one of its components. Below, a text is shaded: a
 * position is darker where the component is needed more. */
function drawComponents(result) {
  const shown = result.shown || [], texts = result.texts || [];
  const sites = result.sites.filter((site) => shown.some((one) => one.site === site.name));
  if (!sites.length || !texts.length) return make('p', {class: 'quiet'}, 'No component is needed more at one position than at another.');
  const text = new ComponentText(texts), choices = make('div', {class: 'choices', role: 'group', 'aria-label': 'component'});
  const used = make('div');
  const choose = (name) => {
    const own = shown.filter((one) => one.site === name);
    choices.replaceChildren(...own.map((one) => choiceOf(one, choices, text)));
    used.replaceChildren(usedTable(sites.find((site) => site.name === name)));
    choices.firstChild.click();
  };
  const select = make('select', {}, sites.map((site) => make('option', {value: site.name}, site.name)));
  select.addEventListener('change', () => choose(select.value));
  choose(sites[0].name);
  const note = 'Shown are the components of a matrix whose importance varies most.';
  return [
    make('div', {class: 'bar'}, make('label', {}, 'Matrix', select), make('span', {class: 'hint'}, note)),
    choices, text.box, text.spoken, make('h3', {}, 'Those that are needed most there'), used,
  ];
}

function choiceOf(one, choices, text) {
  const words = `importance ${brief(one.importance)}, at ${shareWords(one.frequency)} of the positions`;
  const button = make('button', {type: 'button', 'aria-pressed': 'false'}, make('b', {}, `#${one.component}`), ' ', make('span', {class: 'context'}, words));
  button.addEventListener('click', () => {
    for (const other of choices.children) other.setAttribute('aria-pressed', String(other === button));
    text.show(one);
  });
  return button;
}

/* The text whose positions are shaded. show() shades it for one component. */
class ComponentText {
  constructor(texts) {
    this.texts = texts;
    this.words = new Map();
    this.spans = texts.map((bytes) => glyphsOf(bytes).map((glyph) => make('span', {}, glyph)));
    this.spoken = make('output', {class: 'spoken'});
    this.box = make('div', {class: 'texts', tabindex: 0, role: 'group', 'aria-label': 'text'}, this.spans.map((own) => make('p', {}, own)));
    this.spans.flat().filter((span) => span.textContent).forEach((span) => this.words.set(span, ''));
    tellEach(this.box, this.words, this.spoken);
  }

  show(one) {
    this.spans.forEach((own, i) => own.forEach((span, k) => {
      const value = one.hundredths[i][k];
      span.style.setProperty('--need', `${value}%`);
      if (this.words.has(span)) this.words.set(span, `#${one.component} of ${one.site}: ${hundredth(value)} at ${byteWords(this.texts[i][k])}, text ${i + 1}, position ${k}`);
    }));
    this.spoken.textContent = 'Point at a position, or focus the text and use the arrow keys.';
  }
}

function usedTable({used}) {
  const columns = [
    {title: 'component', className: 'name', cell: (one) => `#${one.component}`},
    {title: 'mean importance', number: true, cell: (one) => brief(one.importance)},
    {title: 'of 1', className: 'metered', cell: (one) => meter(one.importance, 'masked')},
    {title: 'needed at', number: true, cell: (one) => shareWords(one.frequency)},
  ];
  return table(columns, used || []);
}

/* ---- the part of the page about the check ---- */

function drawCheck(run) {
  const check = run.check;
  if (!check) return missingFile(run, 'check.json', 'This checks the gradients of the same recipe:', checkCommand(run));
  return [verdictLine(run), otherMesh(run), make('div', {class: 'box'}, drawParams(check)), drawMistakes(check)];
}

function verdictLine(run) {
  const check = run.check, {holds, words} = verdict(run);
  const answer = `${words[0].toUpperCase()}${words.slice(1)}.`;
  const who = `${plural(check.params.length, 'parameter')} on ${plural(check.world, 'rank')} (${meshText(check.mesh)})`;
  const sentence = ` ${who} ${checkedHow(check)}, in ${check.dtype}, ${plural(check.steps, 'step')}.`;
  const reason = check.reason && ` The reason: ${check.reason}.`;
  return make('p', {}, make('b', {class: holds ? 'good' : 'bad'}, answer), sentence, reason, ownDtypes(check));
}

function checkedHow({directional, params}) {
  if (!directional || params.length) return 'against one process on the same batch';
  const numbers = `error ${error(directional.rel_err)}, bound ${error(directional.bound)}`;
  return `along one random direction, against the loss's difference quotient (${numbers})`;
}

/* Returns true if the check shows nothing: no token counted in the loss, or no gradient reached a parameter. Then every
 * gradient is zero, and zeros are equal even if a sum is wrong. */
const countsNothing = (check) => check.summary.counted === 0 || check.summary.reached === 0;

function ownDtypes(check) {
  const own = check.own_dtypes;
  if (!own) return null;
  if (countsNothing(check)) return ' In its own dtypes nothing is checked either.';
  const holds = own.pass ? 'matches' : 'does not match', share = short(100 * own.worst_share_of_bound);
  return ` And in its own dtypes the recipe ${holds}: ${own.param} comes to ${share} % of what rounding allows.`;
}

/* Returns the axes of a mesh or of several meshes as text, without the names of modules: run.json may name the module
 * of a recipe's only mesh, and check.json never does. */
const axesOf = (mesh) => (mesh && typeof mesh === 'object' ? Object.values(mesh).join('; ') : mesh);

function otherMesh(run) {
  const checked = meshText(run.check.mesh), ran = run.run && meshText(run.run.mesh);
  if (!ran || axesOf(run.check.mesh) === axesOf(run.run.mesh)) return null;
  return make('p', {class: 'bad'}, `The check is of another mesh than this run's: ${checked}, not ${ran}.`);
}

function drawParams(check) {
  const params = check.params;
  const failed = params.filter((param) => !paramHolds(param)), held = params.filter(paramHolds);
  if (!params.length) return make('p', {class: 'quiet'}, 'No parameter was looked at by itself.');
  return [
    failed.length > 0 && [make('h3', {class: 'bad'}, `${plural(failed.length, 'parameter')} wrong`), table(failedColumns, failed)],
    make('div', {class: 'folds'}, [...byLayer(held)].map(([layer, own]) => layerFold(layer, own, check))),
  ];
}

/* Returns the layer of a parameter: "blocks.3" for blocks.3.attn.wq, and "final" for final.norm.weight. */
function layerOf(name) {
  const numbered = name.match(/^.*?\.\d+(?=\.|$)/);
  return numbered ? numbered[0] : name.split('.')[0];
}

function byLayer(params) {
  const layers = new Map();
  for (const param of params) {
    const layer = layerOf(param.name);
    if (!layers.has(layer)) layers.set(layer, []);
    layers.get(layer).push(param);
  }
  return layers;
}

function layerFold(layer, params, check) {
  const worst = Math.max(...params.map((param) => param.max_rel_err));
  const words = countsNothing(check) ? 'not checked' : `worst error ${error(worst)}`;
  return fold([make('b', {}, layer), `: ${plural(params.length, 'parameter')}, ${words}`], table(heldColumns, params));
}

const paramColumns = {
  name: {title: 'parameter', className: 'name', cell: (param) => code(param.name)},
  cause: {title: 'likely cause', className: 'says', cell: (param) => causeWords(param) || NONE},
  ratio: {title: 'ratio', number: true, cell: (param) => (isNumber(param.ratio) ? String(Number(param.ratio.toPrecision(6))) : NONE)},
  error: {title: 'worst error', number: true, cell: (param) => error(param.max_rel_err)},
  bound: {title: 'bound', number: true, cell: (param) => error(param.bound)},
  copies: {title: 'copies', cell: (param) => (param.replicas_equal ? 'equal' : 'differ')},
  step: {title: 'at step', number: true, cell: (param) => count(param.step)},
  over: {title: 'reduced over', className: 'name', cell: (param) => param.reduced_over || NONE},
  layout: {title: 'layout', className: 'name', cell: (param) => param.layout},
  storage: {title: 'storage', className: 'name', cell: (param) => param.storage},
};
const columnsNamed = (...keys) => keys.map((key) => paramColumns[key]);
const failedColumns = columnsNamed('name', 'ratio', 'error', 'bound', 'copies', 'cause', 'over', 'step', 'layout', 'storage');
const heldColumns = columnsNamed('name', 'ratio', 'error', 'bound', 'over', 'layout', 'storage');

/* ---- the mutants of a check ---- */

/* Maps `killed_by` of a mutant in check.json to the words of the page. */
const CAUGHT = {
  type: 'killed by type', number: 'killed by number', protocol: 'killed by protocol', plan: 'killed by plan', no_effect: 'without effect', none: 'survived',
};

const says = (mistake) => mistake.message || causeWords(mistake);

function drawMistakes(check) {
  const mistakes = check.mutants;
  if (!mistakes) return make('p', {class: 'quiet'}, 'No mutant was tried: ', code('addend check --mutate'), ' does that.');
  const derived = mistakes.filter((mistake) => mistake.derived), known = mistakes.filter((mistake) => !mistake.derived);
  const folds = [drawMap(derived, check.coverage), drawKnown(known), drawNotPlanted(check.not_applicable || [])];
  return make('div', {class: 'box folds'}, drawSurvivors(mistakes), folds);
}

function drawSurvivors(mistakes) {
  const survivors = mistakes.filter((mistake) => mistake.killed_by === 'none');
  const none = make('b', {class: 'good'}, 'No mutant survived');
  if (!survivors.length) return make('p', {}, none, `, of ${count(mistakes.length)}.`);
  const columns = knownColumns.filter((column) => !column.onlyCaught);
  return [make('h3', {class: 'bad'}, `${plural(survivors.length, 'mutant')} survived`), table(columns, survivors)];
}

const knownColumns = [
  {title: 'mutant', className: 'mistake', cell: (mistake) => code(mistake.name)},
  {title: 'killed by', onlyCaught: true, className: 'name', cell: (mistake) => CAUGHT[mistake.killed_by] || mistake.killed_by},
  {title: 'parameter', className: 'name', onlyCaught: true, cell: (mistake) => mistake.param || NONE},
  {title: 'ratio', number: true, onlyCaught: true, cell: (mistake) => short(mistake.ratio)},
  {title: 'what the check says', className: 'says', cell: (mistake) => says(mistake) || NONE},
];

function drawKnown(known) {
  if (!known.length) return null;
  return fold(make('h3', {}, `Known bugs that are no transition: ${count(known.length)}`), table(knownColumns, known));
}

function drawNotPlanted(list) {
  if (!list.length) return null;
  const name = {title: 'mutant', className: 'name', cell: (own) => code(own.name)};
  const columns = [name, {title: 'why', cell: (own) => own.why}];
  return fold(make('h3', {}, `Not tried, for they would change nothing here: ${count(list.length)}`), table(columns, list));
}

/* Returns the map of the mutants that were derived from the program, with a row for each place in the program, a column
 * for each operator and a square for each mutant. */
function drawMap(derived, coverage) {
  if (!derived.length) return null;
  const places = [...new Set(derived.map((mistake) => mistake.derived.place))];
  const operators = [...new Set(derived.map((mistake) => mistake.derived.operator))];
  const hint = 'Each square is a mistake: point at it, or focus the map and use the arrow keys.';
  const words = new Map(), spoken = make('output', {class: 'spoken'}, hint);
  const map = mapTable(derived, places, operators, words);
  tellEach(map, words, spoken);
  const drawn = coverage && coverage.drawn_from > coverage.mutants ? `, drawn from ${count(coverage.drawn_from)}` : '';
  const title = `Mistakes derived from the program: ${count(derived.length)} at ${plural(places.length, 'place')}${drawn}`;
  const details = fold(make('h3', {}, title), caughtKeys(derived), map, spoken);
  details.open = derived.some((mistake) => mistake.killed_by === 'none');
  return details;
}

function mapTable(derived, places, operators, words) {
  const at = new Map();
  for (const mistake of derived) {
    const cell = JSON.stringify([mistake.derived.place, mistake.derived.operator]);
    at.set(cell, [...(at.get(cell) || []), mistake]);
  }
  const squares = (place, operator) => (at.get(JSON.stringify([place, operator])) || []).map((mistake) => squareOf(mistake, words));
  const cell = (place, operator) => make('div', {class: 'squares'}, squares(place, operator));
  const columns = operators.map((operator) => ({title: operator.replace(/_/g, ' '), cell: (place) => cell(place, operator)}));
  return table([{title: 'place', className: 'place', cell: (place) => place}, ...columns], places, 'map');
}

function squareOf(mistake, words) {
  const square = make('span', {class: `square by-${mistake.killed_by}`});
  const more = says(mistake) ? ` — ${says(mistake)}` : '';
  words.set(square, `${CAUGHT[mistake.killed_by] || mistake.killed_by}: ${mistake.name}${more}`);
  return square;
}

function caughtKeys(derived) {
  const number = (kind) => derived.filter((mistake) => mistake.killed_by === kind).length;
  return make('ul', {class: 'keys'}, Object.keys(CAUGHT).map((kind) =>
    make('li', {}, make('span', {class: `square by-${kind}`}), `${CAUGHT[kind]}: ${count(number(kind))}`)));
}

/* ---- the recipe and the origin of a run ---- */

function noRunFile(run) {
  const sentence = 'So nothing is known of the recipe and the machine. Training writes it when it begins:';
  return missingFile(run, 'run.json', sentence, `addend train RECIPE --out ${shellWord(run.folder)}`);
}

function drawRecipe(run) {
  if (!run.run) return noRunFile(run);
  const changed = run.run.changed || [];
  const columns = [
    {title: 'key', className: 'name', cell: (entry) => code(entry.key)},
    {title: 'value', cell: (entry) => code(entry.value)},
    {title: 'default', cell: (entry) => codeOrNone(entry.default)},
  ];
  return make('div', {class: 'box'},
    changed.length ? table(columns, changed) : make('p', {class: 'quiet'}, 'It states nothing but defaults.'),
    run.run.recipe && fold('The whole recipe', make('pre', {tabindex: 0}, run.run.recipe)));
}

function drawProvenance(run) {
  const own = run.run;
  if (!own) return null;
  return make('div', {class: 'box'}, facts([
    ['command', code(shellLine(own.command))],
    ['addend', own.compiler ? `${own.version}, ${own.compiler}` : own.version],
    ['begun', own.date && dateWords(own.date)], ['finished', typeof own.finished === 'string' ? dateWords(own.finished) : null],
    ['machine', [own.host, own.processor].filter(Boolean).join(', ')],
    ['backend', own.backend && `${own.backend}, ${plural(own.ranks, 'rank')}, ${placedMeshText(own)}`],
    ['model', own.kind && `${own.kind}: ${plural(own.parameters, 'parameter')} with ${count(own.elements)} elements`],
    ...(own.facts || []),
    ['steps', stepsWords(run)], ['speed', speedWords(run)], ['memory', memoryWords(run)],
    ...startsFacts(own.starts || []),
  ]));
}

function stepsWords(run) {
  const skipped = column(run, 'skipped').filter(Boolean).length, every = run.metrics_every || 1;
  const lines = every > 1 ? `; of each ${count(every)} the page shows one` : '';
  const lost = skipped ? `; ${count(skipped)}${lines && ' of those shown'} skipped, for their gradients were not finite` : '';
  return `${count(stepsTaken(run))} of ${count(run.run.steps)}${lines}${lost}`;
}

function speedWords(run) {
  const seconds = median(column(run, 'seconds')), flops = run.run.flops_per_step;
  if (seconds === null) return null;
  const products = flops ? `, ${short((flops / seconds) * 1e-9)} GFLOP/s in matrix products on all ranks` : '';
  return `${milliseconds(seconds)} a step (median)${products}`;
}

function memoryWords(run) {
  const all = sortedNumbers(column(run, 'pss_all_bytes')).pop(), one = sortedNumbers(column(run, 'pss_rank_bytes')).pop();
  return all ? `${mebibytes(all)} on all ranks, ${mebibytes(one)} on the one that holds most (proportional set size)` : null;
}

function startsFacts(starts) {
  if (starts.length < 2) return [];
  const words = (start) => [`${dateWords(start.date)}, from step ${count(start.first_step)}: `, code(shellLine(start.command))];
  return starts.map((start, i) => [`start ${i + 1}`, words(start)]);
}

/* ---- comparing several runs ---- */

/* Returns a table of the keys whose values differ between the recipes, with a column for each run. If a run's recipe
 * does not set a key, its column shows the default. Runs without run.json are named below the table. */
function drawDifferences(runs) {
  const known = runs.filter((run) => run.run);
  const entries = known.map((run) => new Map((run.run.changed || []).map((entry) => [entry.key, entry])));
  const keys = [...new Set(entries.flatMap((own) => [...own.keys()]))];
  const fallback = (key) => (entries.find((own) => own.has(key)).get(key).default);
  const valueIn = (own, key) => (own.has(key) ? own.get(key).value : fallback(key));
  const differing = keys.filter((key) => new Set(entries.map((own) => valueIn(own, key))).size > 1);
  const nameless = runs.filter((run) => !run.run).map((run) => missing(`${run.name} has no run.json: its recipe is not known.`));
  if (known.length < 2) return nameless;
  if (!differing.length) return [make('p', {class: 'quiet'}, 'Their recipes state the same values.'), nameless];
  const cell = (own, key) => codeOrNone(valueIn(own, key), own.has(key) ? null : 'quiet');
  const columns = known.map((run, i) => ({title: run.name, cell: (key) => cell(entries[i], key)}));
  const name = {title: 'key', className: 'name', cell: (key) => code(key)};
  return [make('div', {class: 'box'}, table([name, ...columns], differing)), nameless];
}

function drawParts(run) {
  return [
    section('What follows the prompts', () => drawSamples(run)),
    section('An early and a late step', () => drawTimeline(run)),
    section('The check', () => drawCheck(run)),
    section('The recipe', () => drawRecipe(run)),
    section('Where it comes from', () => drawProvenance(run)),
  ];
}

/* ---- the page ---- */

function leadOf(run) {
  const own = run.run;
  if (!own) return run.folder;
  const part = isUnfinished(run) ? `, ${partWords(run)}` : '';
  return `${own.kind}, addend ${own.version}, ${own.host}, ${dateWords(own.date)}${part}`;
}

function drawOne(run, group) {
  return [
    make('h1', {}, run.name),
    make('p', {class: 'lead'}, leadOf(run)),
    section(null, () => tilesForOne(run)),
    section('Training', () => drawCharts([run], group)),
    section('What the program measures', () => drawMeasures([run], group)),
    section('What was read', () => drawReading(run)),
    section('What the components do', () => drawDecomposition(run)),
    drawParts(run),
  ];
}

function drawMany(runs, group) {
  const switches = runs.map((run, i) => {
    const box = make('input', {type: 'checkbox', checked: true});
    box.addEventListener('change', () => group.setVisible(i, box.checked));
    return box;
  });
  return [
    make('h1', {}, `${runs.length} runs`),
    make('p', {class: 'lead'}, runs.map((run) => run.folder).join(', ')),
    section(null, () => tilesForMany(runs, switches)),
    section('Training', () => drawCharts(runs, group)),
    section('What the program measures', () => drawMeasures(runs, group)),
    section('Where their recipes differ', () => drawDifferences(runs)),
    runs.map((run) => make('details', {class: 'run'}, make('summary', {}, run.name), drawParts(run))),
  ];
}

/* Draws the charts again when the colours of the page change, or when it is printed. A canvas, unlike other elements,
 * does not follow the style sheet. */
function followColours(group) {
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => group.recolour());
  const printing = (on) => {
    document.documentElement.classList.toggle('printing', on);
    group.resize();
    group.recolour();
  };
  addEventListener('beforeprint', () => printing(true));
  addEventListener('afterprint', () => printing(false));
}

function drawPage() {
  const runs = JSON.parse(document.getElementById('runs').textContent);
  runs.forEach(judgeFiles);
  nameRuns(runs);
  const group = new Group(allSteps(runs));
  document.title = `${runs.length === 1 ? runs[0].name : `${runs.length} runs`} – addend`;
  const parts = runs.length === 1 ? drawOne(runs[0], group) : drawMany(runs, group);
  filled(document.getElementById('page'), {}, parts);
  group.start();
  followColours(group);
}

drawPage();
