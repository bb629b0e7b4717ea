#!/usr/bin/env python3
"""Compares the causes that `addend check --mutate` reports for mutants with the mistakes in these.

    python3 lab/causes.py build/addend recipes/*.yaml >table.md
    python3 lab/causes.py build/addend recipes/pools-*.yaml --set train.microbatches=3 --mutants 15

A cause is right if its kind, its axes, its place (parameter, pass and transition, bridge, pool, count, update) and its
factor are those of the mistake. Counts for each recipe, over all mutants that are killed by numbers: whether the right
cause is named, by `cause` or among `possible_causes`, and whether a `cause` is false. A `cause` that names none of these
is vague, and any other that is not right is false. Lists the mistakes that are not named, and the false causes.
"""

import argparse
import collections
import json
import math
import pathlib
import re
import subprocess
import sys

PLACE = re.compile(r'^(?P<what>.*): (?P<move>\w+) over (?P<axes>[a-z_,]+)( \(number \d+\))?$')
OF_AN_AXIS = {'more_axes', 'fewer_axes', 'other_group'}

# Causes that say no more than that a gradient is wrong: they name no kind, axis, place or pass.
VAGUE = re.compile(
    r'[\d.e+-]+ times (what is expected|the reference): a factor that is no group'
    r'|microbatch .* times what is expected$'
    r'|all replicas are the same and wrong: addends are missing, counted with other weights, or computed from other data$'
    r'|addends count differently|the addends of each rank carry a factor of their own|a value is not a finite number'
)

# The kinds of causes that say what an operator does to the sum of a parameter's gradient, and to a value on a tape.
# `unknown` on a tape: the place is named, and every way in which it may be wrong.
KINDS = {
    'left_out': ({'partial', 'missing', 'replicas_differ'}, {'unknown', 'averaged'}),
    'doubled': ({'doubled'}, {'unknown', 'doubled'}),
    'averaged': ({'averaged'}, {'unknown', 'averaged'}),
    'more_axes': ({'wrong_group', 'doubled'}, {'unknown', 'doubled'}),
    'fewer_axes': ({'partial', 'missing', 'replicas_differ'}, {'unknown', 'averaged'}),
    'other_group': ({'wrong_group', 'replicas_differ'}, {'unknown'}),
    'backward_identity': (set(), {'unknown', 'averaged'}),
    'backward_local': (set(), {'unknown', 'averaged'}),
    'first_microbatch_only': ({'partial', 'missing'}, {'unknown', 'averaged'}),
    'once_everywhere': ({'doubled'}, {'unknown', 'doubled'}),
}

# What is said of the norm's own sum, and of copies of a parameter that it counts.
OF_NORM = {
    'left_out': {'partial', 'missing', 'unknown'},
    'fewer_axes': {'partial', 'missing', 'unknown'},
    'first_microbatch_only': {'partial', 'missing', 'unknown'},
    'other_group': {'partial', 'missing', 'unknown', 'doubled'},
    'more_axes': {'doubled', 'unknown'},
    'doubled': {'doubled'},
    'averaged': {'averaged'},
    'once_everywhere': {'doubled'},
}

# What a cause says of the count by which losses are divided, for each operator: a count that is too small makes the
# gradient too large.
OF_COUNT = {
    'left_out': r'left out|local count',
    'averaged': r'averaged, (made twice, )?or made|local count',
    'doubled': r'made twice|count that was summed twice',
    'more_axes': r'over more ranks|over other ranks|count that was summed twice',
    'fewer_axes': r'over fewer ranks|over other ranks|local count',
    'other_group': r'over other ranks',
    'first_microbatch_only': r'over other ranks|left out',
}

BACKWARD = r'formula of the backward pass|in the backward pass: a transition|on the way back over the bridge'
FORWARD = r'formula or the data of the forward pass'
UPDATE = r'update'
NORM = r'^in the norm'
NARROW = r'differs by rounding only: .*(narrower dtype|other order)|rounded to 16 bits'

# Mistakes that are not in a transition: the kinds and the words of right causes, and which axes they are over ("sum":
# those that the parameter's gradient is summed over; "": none, or any).
KNOWN = {
    'accumulated-divided-again': ({'averaged', 'unknown'}, r'accumulated was divided|microbatch \d+ counts', ''),
    'add-to-itself-in-group-of-one': ({'doubled'}, r'^doubled|^summed twice', ''),
    'averaged-over-stages': ({'averaged'}, r'averaged over the stages', 'pp'),
    'bf16-for-f16-gradients': ({'rounding'}, NARROW, ''),
    'bf16-for-f16-values': ({'rounding'}, NARROW, ''),
    'both-factors-when-one-runs': ({'averaged'}, r'accumulated was divided by the ranks of', ''),
    'bucket-by-raw-dtype': ({'rounding'}, NARROW, ''),
    'bucket-by-wide-gradient': ({'rounding'}, NARROW, ''),
    'bucket-reused-early': (
        {'missing', 'partial', 'replicas_differ'},
        r'sum is zero, and no rank|addends are missing|only the last microbatch|or from other gradients|'
        r'not summed over',
        '',
    ),
    'decay-everywhere': ({'unknown'}, UPDATE, ''),
    'divided-at-each-stage': ({'averaged', 'unknown'}, rf'number of microbatches|{BACKWARD}', ''),
    'divided-behind-backward': ({'unknown', 'doubled'}, rf'{BACKWARD}|not divided|loss scale', ''),
    'divided-by-microbatches-too': ({'averaged', 'unknown'}, rf'number of microbatches|{BACKWARD}|{FORWARD}', ''),
    'divided-by-one-microbatch': ({'averaged', 'unknown'}, rf'each divided by its own count|{FORWARD}|count that', ''),
    'embedding-twice-in-norm': ({'doubled'}, NORM, 'pp'),
    'experts-averaged-over-replicas': ({'doubled'}, r'not divided', ''),
    'experts-divided-by-own-group': ({'doubled'}, r'not divided', ''),
    'factor-wrong-width': ({'missing', 'unknown'}, r'sum is zero, and no rank|factor|not finite', ''),
    'first-step-unsynchronised': ({'partial'}, r'own addend only: not summed over|not reduced over', 'sum'),
    'frozen-moves': ({'unknown', 'replicas_differ'}, r'is frozen', ''),
    'group-copies-stale': ({'unknown'}, rf'{FORWARD}|{UPDATE}', ''),
    'group-launched-late': ({'missing'}, r'the sum is zero|addends are missing|only the', ''),
    'group-sum-lost': ({'missing'}, r'only the last microbatch|addends are missing', ''),
    'last-microbatch-only': ({'missing'}, r'only the last microbatch', ''),
    'master-in-bf16': ({'unknown', 'replicas_differ'}, UPDATE, ''),
    'mean-of-microbatch-means': ({'averaged', 'unknown'}, rf'each divided by its own count|{FORWARD}', ''),
    'muon-decay-after-adjusted-rate': ({'unknown'}, UPDATE, ''),
    'muon-flat-goes-to-adamw': ({'unknown'}, UPDATE, ''),
    'muon-halves-not-exchanged': ({'unknown'}, UPDATE, ''),
    'muon-norm-per-shard': ({'unknown'}, UPDATE, ''),
    'muon-not-nesterov': ({'unknown'}, UPDATE, ''),
    'muon-not-orthogonalised': ({'unknown'}, UPDATE, ''),
    'muon-partly-reduced': ({'unknown', 'replicas_differ'}, UPDATE, ''),
    'muon-per-shard': ({'unknown'}, UPDATE, ''),
    'muon-per-tp-shard': ({'unknown'}, UPDATE, ''),
    'muon-rate-by-shard-shape': ({'unknown', 'replicas_differ'}, UPDATE, ''),
    'muon-result-of-another-matrix': ({'unknown', 'replicas_differ'}, UPDATE, ''),
    'muon-silently-off': ({'unknown'}, UPDATE, ''),
    'muon-split-by-shard-rows': ({'unknown'}, UPDATE, ''),
    'muon-before-sum': ({'missing', 'unknown', 'replicas_differ'}, r'addends are missing|factor|replicas', ''),
    'narrow-accumulate': ({'rounding'}, NARROW, ''),
    'norm-of-each-stage': ({'missing'}, NORM, 'pp'),
    'norm-over-other-mesh': ({'unknown', 'doubled', 'partial', 'missing'}, NORM, ''),
    'one-seed-for-two-averages': ({'averaged'}, r'averaged over [a-z_,]+ \(\d+\), and multiplied by the ranks of', ''),
    'overflow-per-rank': ({'unknown', 'replicas_differ'}, UPDATE, ''),
    'perturbed-replica': (
        {'replicas_differ'},
        r'differs from all others|is wrong on rank \d+ and right|the first rank is right|changed afterwards',
        '',
    ),
    'product-sums-in-bf16': ({'rounding'}, NARROW, ''),
    'rate-of-another-group': ({'unknown'}, UPDATE, ''),
    'residual-in-bf16': ({'rounding'}, NARROW, ''),
    'shifted-slice': ({'unknown'}, rf'{FORWARD}|read other rows', ''),
    'slot-filled-again': ({'missing'}, r'only the last microbatch|or computed from other data', ''),
    'sources-summed-over-samples': ({'unknown'}, rf'{FORWARD}|{BACKWARD}', ''),
    'state-of-another-parameter': ({'unknown'}, UPDATE, ''),
    'state-sharded-otherwise': ({'unknown'}, UPDATE, ''),
    'statistics-in-bf16': ({'rounding'}, NARROW, ''),
    'step-off-by-one': ({'unknown'}, UPDATE, ''),
    'update-per-microbatch': ({'unknown'}, UPDATE, ''),
}
# Mistakes in what an optimizer does with right gradients.
OF_UPDATES = (
    'decay-everywhere decay-missing momentum-forgotten muon-decay-after-adjusted-rate muon-flat-goes-to-adamw '
    'muon-halves-not-exchanged muon-norm-per-shard muon-not-nesterov muon-not-orthogonalised muon-partly-reduced '
    'muon-per-shard muon-per-tp-shard muon-rate-by-shard-shape muon-result-of-another-matrix muon-silently-off '
    'muon-split-by-shard-rows rate-of-another-group state-of-another-parameter state-sharded-otherwise step-off-by-one '
    'update-applied-twice update-per-microbatch'
)
KNOWN |= {name: ({'unknown', 'replicas_differ'}, UPDATE, '') for name in OF_UPDATES.split()}
COMPUTED = ({'unknown', 'doubled', 'averaged'}, rf'{FORWARD}|{BACKWARD}', '')  # all others change what is computed


def check_kinds():
    """Ends the program if a table above names a kind that a check does not report. A check reports those kinds of
    audit/say/causes.h whose causes stay of their kind in it."""
    table = (pathlib.Path(__file__).resolve().parent.parent / 'audit/say/causes.h').read_text()
    rows = re.findall(r'^  X\((\w+), "(\w+)", "[^"]*", \w+, (\w+), [01]\)', table, re.MULTILINE)
    reported = {name for code, name, checked in rows if code == checked}
    named = set().union(*OF_NORM.values(), *sum(KINDS.values(), ()), COMPUTED[0], *(kinds for kinds, _, _ in KNOWN.values()))
    if not named <= reported:
        sys.exit(f'{__file__} names kinds that a check does not report: {", ".join(sorted(named - reported))}')


def set_of(axes):
    return set(axes.split(',')) - {''}


def sizes_of(param):
    return {axis: int(size) for axis, size in (word.split('=') for word in param['mesh'].split())}


class Mutant:
    """A mistake, and the parameter that shows it."""

    def __init__(self, mutate, param):
        self.name, self.param, self.expected = mutate['name'], param, mutate['expected_ratio']
        self.sizes, derived = sizes_of(param), mutate['derived']
        self.operator = derived and derived['operator']
        if not derived:
            return
        place = PLACE.match(derived['place'])
        self.phase, self.what = derived['phase'], place['what']
        # a move of matrices that an optimizer works on as a whole, named after the first of them
        self.is_of_update = self.phase == 'step' and bool(place['move'] == 'all_to_all' or re.search(r' and \d+ more$', self.what))
        self.axes = self.large(place['axes'])
        self.reduced = self.large(param['reduced_over'])
        self.named = {self.name.split(':')[1].split(' ')[0]} if self.operator in OF_AN_AXIS else set()

    def large(self, axes):
        """The axes that have more than one rank."""
        return {axis for axis in set_of(axes) if self.sizes.get(axis) != 1}

    def has_axes(self, over):
        """Whether a cause over these axes is over those of the mistake."""
        if self.operator == 'other_group':
            return over and over <= self.axes | self.named
        if self.operator == 'more_axes' or self.phase != 'step':
            return over in (self.named, self.axes, self.axes | self.named, self.reduced | self.named)
        if self.operator == 'fewer_axes':
            return over == self.named or (self.what == 'count' and over == self.axes)
        return over == self.axes

    def has_factor(self, cause):
        """Whether the cause's factor is the mistake's, and the ranks that the cause names give it."""
        factor, text = cause['factor'], cause['text']
        if factor is None:
            return True
        product = re.search(r'over [a-z_,]+ \((\d+)\), and multiplied by the ranks of `[^`]+` \((\d+)\)', text)
        if product and not math.isclose(factor, int(product[2]) / int(product[1]), rel_tol=1e-6):
            return False
        if self.expected is not None and not math.isclose(factor, self.expected, rel_tol=1e-4):
            return False
        over = set_of(cause['axes'])
        if product or not over or not over <= set(self.sizes) or cause['kind'] not in ('averaged', 'doubled'):
            return True
        ranks = math.prod(self.sizes[axis] for axis in over)
        return 'count that losses' in text or math.isclose(max(factor, 1 / factor), ranks, rel_tol=1e-4)

    def is_reported_by(self, cause):
        """Whether kind, axes, place and factor of the cause are those of the mistake."""
        over, text, kind = set_of(cause['axes']), cause['text'], cause['kind']
        if not self.operator:
            kinds, words, axes = KNOWN.get(self.name, COMPUTED)
            has_axes = not axes or over == (self.large(self.param['reduced_over']) if axes == 'sum' else {axes})
            return kind in kinds and bool(re.search(words, text)) and has_axes and self.has_factor(cause)
        if self.is_of_update:
            return bool(re.search(UPDATE, text))
        if self.what == 'norm':
            return re.search(UPDATE, text) or (kind in OF_NORM[self.operator] and self.is_of_norm(over, text))
        if self.operator == 'first_microbatch_only' and re.match(r'microbatch 0 counts 1, .*counts 0 times', text):
            return self.phase == 'step'
        if not self.has_axes(over) or not self.has_factor(cause):
            return False
        if self.what == 'count':
            return 'count' in text and bool(re.search(OF_COUNT[self.operator], text))
        if self.phase == 'step':
            own = self.param['name'] == self.what and not re.search('forward|backward|bridge', text)
            return own and kind in KINDS[self.operator][0]
        return kind in KINDS[self.operator][1] and self.is_placed(cause)

    def is_of_norm(self, over, text):
        """Whether a wrong norm is put down to axes of its sum. Where stages sum apart, each operator is made in the sum
        over all stages as well; a parameter on another view has other axes."""
        if not re.search(NORM, text):
            return False
        if self.operator in ('doubled', 'averaged', 'once_everywhere'):
            return over - {'pp'} == self.axes or 'over all ranks' in text  # whose mesh has one axis of all stages' ranks
        seen = self.named & set(self.sizes)
        return bool(over) and (not seen or bool(over & (seen | {'pp'})))

    def is_placed(self, cause):
        """Whether the cause names the pass and the transition, or the bridge, of a mistake on a tape."""
        if not re.search(r'\.c:\d+(,|$)', self.what):
            return cause['place'] == self.what and 'bridge' in cause['text']
        listed = self.what in cause['text'] or re.search(r' or \d+ more\)$', cause['text'])
        return f'in the {self.phase} pass: a transition' in cause['text'] and bool(listed)


def verdict_on(mutants, alone, causes):
    reported = any(mutants.is_reported_by(cause) for cause in causes)
    if alone and not reported and not VAGUE.match(alone['text']):
        return 'false'
    return 'vague' if not reported else 'alone' if alone else 'listed'


def look_at(addend, recipe, given):
    mutate = f'--mutate={given.mutants}' if given.mutants else '--mutate'
    arguments = [argument for each in given.set for argument in ('--set', each)]
    run = subprocess.run(
        [addend, 'check', recipe, mutate, '--json', *arguments], capture_output=True, text=True, check=False
    )
    if run.returncode not in (0, 1):
        sys.exit(f'{recipe}: {run.stderr}')
    return json.loads(run.stdout)


def judge(document, listed):
    counter, lines = collections.Counter(), []
    params = {param['name']: param for param in document['params']}
    for mutate in document['mutants']:
        if mutate['killed_by'] != 'number' or mutate['param'] is None:
            continue
        alone = mutate['cause']
        causes = [alone] if alone else mutate['possible_causes']
        verdict = verdict_on(Mutant(mutate, params[mutate['param']]), alone, causes)
        said = [cause['text'].replace('../', '') for cause in causes]
        listed.append((document['recipe'], mutate['name'].replace('../', ''), mutate['param'], verdict, ' | '.join(said)))
        counter['killed'] += 1
        counter[verdict] += 1
        if verdict in ('vague', 'false'):
            words = ' \\| '.join(said)
            lines.append(f"{mutate['name']} | {mutate['param']} | {verdict}: {words} |")
    return counter, lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('addend')
    parser.add_argument('recipe', nargs='+', help='a recipe, or the document of its check (.json)')
    parser.add_argument('--list', metavar='FILE', help='every mutant, with the causes reported for it, as a table with tabs')
    parser.add_argument('--set', metavar='PATH=VALUE', action='append', default=[], help='replace a key of each recipe')
    parser.add_argument('--mutants', metavar='N', type=int, help='draw N of the mutants; all, if left out')
    given = parser.parse_args()
    check_kinds()
    every, listed, whole = [], [], collections.Counter()
    print('| recipe | by number | rightly named | by a `cause` alone | false `cause` |\n|---|---|---|---|---|')
    for recipe in given.recipe:
        document = json.load(open(recipe)) if recipe.endswith('.json') else look_at(given.addend, recipe, given)
        counter, lines = judge(document, listed)
        name, named = document['recipe'], counter['alone'] + counter['listed']
        print(f"| {name} | {counter['killed']} | {named} | {counter['alone']} | {counter['false']} |", flush=True)
        every += [f'| {name} {line}' for line in lines]
        whole.update(counter)
    print(f"\n{whole['killed']} by number, {whole['alone'] + whole['listed']} named, {whole['alone']} alone, {whole['false']} false")
    print('\n| recipe | planted | shown by | said |\n|---|---|---|---|')
    print('\n'.join(every))
    if given.list:
        with open(given.list, 'w') as file:
            file.write('recipe\tplanted\tshown by\ttold\tsaid\n')
            file.writelines('\t'.join(row) + '\n' for row in listed)
    sys.exit(1 if whole['false'] else 0)


main()
