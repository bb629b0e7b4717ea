#!/usr/bin/env python3
"""Compares the causes that `addend check --sabotage` reports for planted mistakes with what was planted.

    python3 bench/causes.py build/addend recipes/*.yaml >table.md

Counts for each recipe, over all mistakes that are caught by numbers: whether axis and place are named, by `cause` or among
`possible_causes`, and whether a `cause` is false. Lists the mistakes that are not named, and the false causes.
"""

import argparse
import collections
import json
import re
import subprocess
import sys

PLACE = re.compile(r'^(?P<what>.*): (?P<move>\w+) over (?P<axes>[a-z_,]+)( \(number \d+\))?$')
NOT_OVER = {'more_axes', 'fewer_axes', 'other_group'}

# Words that a right cause of these mistakes contains (mistakes that are not in a transition; the parameter is always named).
KNOWN = {
    'mean-of-microbatch-means': r'microbatch',
    'last-microbatch-only': r'last microbatch',
    'first-step-unsynchronised': r'not (summed|reduced) over|differ along',
    'both-factors-when-one-runs': r'accumulated was divided|microbatch',  # accumulated: all microbatches but the last
    'factor-wrong-width': r'missing: the sum is zero|factor|not finite',
    'bucket-by-raw-dtype': r'rounding|rounded',
    'bucket-by-wide-gradient': r'rounding|rounded',
    'narrow-accumulate': r'rounding|rounded',
    'bucket-reused-early': r'other data|microbatch|copies differ|addend',
    'slot-filled-again': r'microbatch|other data',
    'perturbed-replica': r"cop(y|ies) differs?|wrong on rank",
    'master-in-bf16': r'update',
    'one-seed-for-two-averages': r'averaged|divided',
}


# Kinds of causes that contradict an operator, which says how the sum is wrong. `missing` for a pass or a count only says
# that another transition is meant ("left out, or done over other ranks").
OTHER_KINDS = {
    'averaged': {'doubled', 'partial', 'wrong_group'},
    'doubled': {'averaged', 'partial', 'wrong_group'},
    'left_out': {'doubled', 'wrong_group'},
    'first_microbatch_only': {'doubled', 'wrong_group'},
}


def truth(sabotage):
    """The axes over which the mistake was planted, and its phase and place."""
    derived = sabotage['derived']
    place = PLACE.match(derived['place'])
    axes = set(place['axes'].split(','))
    named = sabotage['name'].split(':')[1].split(' ')[0] if derived['operator'] in NOT_OVER else None
    if derived['operator'] in ('more_axes', 'fewer_axes'):
        axes = {named}
    if derived['operator'] == 'other_group':
        axes |= {named}
    if derived['phase'] != 'step':  # for a transition on a tape, the answer is which one
        axes |= set(place['axes'].split(','))
    return axes, derived['phase'], place['what']


def names_place(cause, sabotage, phase, what):
    if what == 'count':
        return 'count' in cause['text']
    if what == 'norm':
        return 'update' in cause['text'] or 'norm' in cause['text']
    if phase == 'step':
        return sabotage['param'] == what and not re.search('forward|backward', cause['text'])
    return phase in cause['text'] or 'bridge' in cause['text']


def is_of_other_kind(cause, sabotage):
    return cause['kind'] in OTHER_KINDS.get(sabotage['derived']['operator'], ())


def fits(cause, sabotage):
    if not sabotage['derived']:
        return bool(re.search(KNOWN.get(sabotage['name'], 'forward|backward'), cause['text']))
    axes, phase, what = truth(sabotage)
    over = set(cause['axes'].split(',')) - {''}
    if what == 'norm':
        return names_place(cause, sabotage, phase, what)
    return bool(over & axes) and names_place(cause, sabotage, phase, what) and not is_of_other_kind(cause, sabotage)


def is_false(cause, sabotage):
    """Whether a certain cause names another axis or place; one that names neither is vague, not false."""
    if fits(cause, sabotage) or cause['kind'] == 'unknown':
        return False
    if not sabotage['derived']:
        return bool(cause['axes']) and sabotage['name'] in KNOWN
    axes, phase, what = truth(sabotage)
    over = set(cause['axes'].split(',')) - {''}
    wrong = not over & axes or not names_place(cause, sabotage, phase, what) or is_of_other_kind(cause, sabotage)
    return bool(over) and wrong


def look_at(addend, recipe):
    run = subprocess.run([addend, 'check', recipe, '--sabotage', '--json'], capture_output=True, text=True, check=False)
    if run.returncode not in (0, 1):
        sys.exit(f'{recipe}: {run.stderr}')
    return json.loads(run.stdout)


def judge(document, listed):
    tally, lines = collections.Counter(), []
    for sabotage in document['sabotage']:
        if sabotage['caught_by'] != 'number' or sabotage['param'] is None:
            continue
        causes = [sabotage['cause']] if sabotage['cause'] else sabotage['possible_causes']
        named = any(fits(cause, sabotage) for cause in causes)
        false = bool(sabotage['cause']) and is_false(sabotage['cause'], sabotage)
        verdict = 'false' if false else 'vague' if not named else 'alone' if sabotage['cause'] else 'listed'
        listed.append((document['recipe'], sabotage['name'], sabotage['param'], verdict, ' | '.join(cause['text'] for cause in causes)))
        tally['caught'] += 1
        tally['named'] += named
        tally['alone'] += named and bool(sabotage['cause'])
        tally['false'] += false
        if not named or false:
            said = ' \\| '.join(f"{cause['text']}" for cause in causes)
            lines.append(f"| {sabotage['name']} | {sabotage['param']} | {'false' if false else 'vague'}: {said} |")
    return tally, lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('addend')
    parser.add_argument('recipe', nargs='+', help='a recipe, or the document of its check (.json)')
    parser.add_argument('--list', metavar='FILE', help='every mistake, with what was said of it, as a table with tabs')
    given = parser.parse_args()
    every, listed = [], []
    print('| recipe | by number | axis and place named | by a `cause` alone | false `cause` |\n|---|---|---|---|---|')
    for recipe in given.recipe:
        document = json.load(open(recipe)) if recipe.endswith('.json') else look_at(given.addend, recipe)
        tally, lines = judge(document, listed)
        name = document['recipe']
        print(f"| {name} | {tally['caught']} | {tally['named']} | {tally['alone']} | {tally['false']} |", flush=True)
        every += [f'| {name} {line[1:]}' for line in lines]
    print('\n| recipe | planted | shown by | said |\n|---|---|---|---|')
    print('\n'.join(every))
    if given.list:
        with open(given.list, 'w') as file:
            file.write('recipe\tplanted\tshown by\ttold\tsaid\n')
            file.writelines('\t'.join(row) + '\n' for row in listed)


main()
