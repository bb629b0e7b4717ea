/* Compares the notes of a run with those of its reference, and describes the first difference in words. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "check/bits.h"
#include "module/module.h"
#include "program/program.h"

typedef struct comparing {
  ad_bits_list run, reference;
  const ad_program *program;
  ad_bits_finding *found;
} comparing;

/* ---- describing the first difference ---- */

static const char *part_name(int64_t part) {
  return part == AD_PART_VALUE ? "value" : part == AD_PART_MASTER ? "master" : "optimizer state";
}

/* Writes the name of what was hashed: "`w`" (a parameter's gradient), "the loss `ce`", "the norm". */
static void print_subject(const comparing *c, const ad_bits_note *note, ad_text *text) {
  switch (note->kind) {
    case AD_BITS_LOSS:
      ad_text_add(text, "the loss `%s`", ad_program_loss(c->program, (size_t)note->of)->name);
      return;
    case AD_BITS_NORM:
    case AD_BITS_CLIP:
      ad_text_add(text, note->kind == AD_BITS_NORM ? "the norm" : "the clip factor");
      return;
    case AD_BITS_SQUARES:
      ad_text_add(text, "the sum of squares of `%s`", c->found->param);
      return;
    case AD_BITS_VALUE:
      ad_text_add(text, "the updated %s of `%s`", part_name(note->part), c->found->param);
      return;
    case AD_BITS_STATE:
      ad_text_add(text, "the state `%s`", ad_program_module(c->program, 0)->states[note->of].name);
      return;
    default:
      ad_text_add(text, "`%s`", c->found->param);
  }
}

static const char *what(const ad_bits_note *note) {
  static const char *const words[] = {"run", "node", "loss", "norm", "norm", "clip", "update", "update"};
  return note->kind == AD_BITS_SUM && note->node.count == 1 ? "leaf" : words[note->kind];
}

/* Records in `found` that the note `at` differs, and begins the sentence about the difference. */
static ad_text begin(const comparing *c, const ad_bits_listed *at, int64_t rank) {
  ad_bits_finding *found = c->found;
  ad_bits_kind kind = at->note.kind;
  int has_param = kind == AD_BITS_SUM || kind == AD_BITS_SQUARES || kind == AD_BITS_VALUE;
  found->equal = 0;
  found->first = at->note;
  found->what = what(&at->note);
  found->rank = rank;
  if (has_param) ad_program_param_name(c->program, 0, (size_t)at->note.of, found->param, sizeof found->param);
  ad_text text = ad_text_on(found->difference, sizeof found->difference);
  ad_text_add(&text, "step %lld: ", (long long)at->note.step);
  return text;
}

/* Writes " differs on rank 2, as summed over dp_shard". */
static void print_differs(ad_text *text, const ad_bits_note *note, int64_t rank) {
  char axes[96];
  ad_text_add(text, " differs");
  if (rank >= 0) ad_text_add(text, " on rank %lld", (long long)rank);
  if (note->over && !note->beyond)
    ad_text_add(text, ", as summed over %s", ad_axes_print(note->over, axes, sizeof axes));
}

/* Returns 1 if the run also has sums over both children of the node. Those sums agree, because smaller nodes are
 * compared first. */
static int has_children(const comparing *c, const ad_bits_listed *at) {
  ad_bits_listed lower = *at, upper = *at;
  lower.note.node.count = (int64_t)ad_node_lower((size_t)at->note.node.count);
  upper.note.node.first += lower.note.node.count;
  upper.note.node.count -= lower.note.node.count;
  return ad_bits_list_find(&c->run, &lower) && ad_bits_list_find(&c->run, &upper);
}

static void say_sum(const comparing *c, const ad_bits_listed *at, int64_t rank) {
  const ad_bits_note *note = &at->note;
  ad_text text = begin(c, at, rank);
  char axes[96];
  long long first = note->node.first, end = note->node.first + note->node.count;
  if (note->beyond)
    ad_text_add(&text, "the sum of `%s` over %s", c->found->param, ad_axes_print(note->beyond, axes, sizeof axes));
  else if (note->node.count == 1)
    ad_text_add(&text, "leaf %lld's %sgradient of `%s`", first, note->over ? "" : "own ", c->found->param);
  else
    ad_text_add(&text, "node [%lld, %lld) of `%s`", first, end, c->found->param);
  print_differs(&text, note, rank);
  if (note->beyond)
    ad_text_add(&text, "; that over all leaves agrees");
  else if (note->node.count > 1)
    ad_text_add(&text, "; %s", has_children(c, at) ? "its children agree" : "all sums seen below it agree");
}

static void say_no_node(const comparing *c, const ad_bits_listed *at) {
  ad_text text = begin(c, at, at->rank);
  char axes[96];
  ad_text_add(&text, "rank %lld has a sum of [%lld, %lld) of `%s`", (long long)at->rank, (long long)at->note.node.first,
              (long long)at->note.node.first + (long long)at->note.node.count, c->found->param);
  if (at->note.over) ad_text_add(&text, " over %s", ad_axes_print(at->note.over, axes, sizeof axes));
  ad_text_add(&text, ", which is no node of the tree over the leaves");
}

static void say_missing(const comparing *c, const ad_bits_listed *at) {
  ad_text text = begin(c, at, -1);
  if (at->note.kind == AD_BITS_RAN)
    ad_text_add(&text, "leaf %lld ran nowhere", (long long)at->note.node.first);
  else if (at->note.kind == AD_BITS_SUM && at->note.node.count == 1)
    ad_text_add(&text, "leaf %lld's own gradient of `%s` was added nowhere", (long long)at->note.node.first,
                c->found->param);
  else {
    print_subject(c, &at->note, &text);
    ad_text_add(&text, " was seen on no rank");
  }
}

static void say_repeated(const comparing *c, const ad_bits_listed *at, size_t count) {
  ad_text text = begin(c, at, -1);
  ad_text_add(&text, "leaf %lld ", (long long)at->note.node.first);
  if (at->note.kind == AD_BITS_SUM) ad_text_add(&text, "of `%s` was added ", c->found->param);
  if (at->note.kind == AD_BITS_RAN) ad_text_add(&text, "ran ");
  ad_text_add(&text, "%zu times, on rank%s ", count, at[0].rank == at[count - 1].rank ? "" : "s");
  for (size_t i = 0, listed = 0; i < count; i++)
    if (!i || at[i].rank != at[i - 1].rank) ad_text_add(&text, "%s%lld", listed++ ? ", " : "", (long long)at[i].rank);
}

static void say_value(const comparing *c, const ad_bits_listed *at, int64_t rank) {
  ad_text text = begin(c, at, rank);
  print_subject(c, &at->note, &text);
  print_differs(&text, &at->note, rank);
  ad_text_add(&text, at->note.kind == AD_BITS_STATE   ? "; gradients and updated values agree"
                     : at->note.kind == AD_BITS_VALUE ? "; gradients, norm and clip factor agree"
                     : at->note.kind == AD_BITS_LOSS  ? "; all gradients agree"
                                                      : "; all gradients and losses agree");
}

static void say_differs(const comparing *c, const ad_bits_listed *at, int64_t rank) {
  if (at->note.kind == AD_BITS_SUM)
    say_sum(c, at, rank);
  else
    say_value(c, at, rank);
}

/* ---- comparing ---- */

/* Counts the notes of a leaf's forward pass, or of its own gradient: a rank computed the leaf. Each leaf must be
 * computed once at each position on the other axes. Notes of a collective's result (`over` is not 0) do not count, even
 * if the collective left a leaf's gradient unchanged. */
static size_t count_leaf(const ad_bits_listed *at, size_t count) {
  size_t found = 0;
  for (size_t i = 0; i < count; i++)
    found += at[i].note.kind == AD_BITS_RAN ||
             (at[i].note.kind == AD_BITS_SUM && at[i].note.node.count == 1 && !at[i].note.over);
  return found;
}

/* Compares the notes whose hash covers all elements of the array. Reports the first that differs and returns 1, or
 * returns 0. */
static int some_full_differ(const comparing *c, const ad_bits_listed *at, size_t count, const ad_bits_note *expected) {
  for (size_t i = 0; i < count; i++) {
    if (at[i].note.numel != expected->numel || at[i].note.hash == expected->hash) continue;
    say_differs(c, &at[i], at[i].rank);
    return 1;
  }
  return 0;
}

/* Returns the first note of a shard that differs from the reference's of the same shard; NULL if none is known to. */
static const ad_bits_listed *find_shard(const comparing *c, const ad_bits_listed *at, size_t count, int64_t numel) {
  for (size_t i = 0; i < count; i++) {
    const ad_bits_listed *expected = at[i].note.numel == numel ? NULL : ad_bits_list_find_shard(&c->reference, &at[i]);
    if (expected && expected->note.numel == at[i].note.numel && expected->note.hash != at[i].note.hash) return &at[i];
  }
  return NULL;
}

/* Compares the notes of shards. The hashes of shards add up to the hash of the whole array, once for each replica. */
static void compare_shards(const comparing *c, const ad_bits_listed *at, size_t count, const ad_bits_note *expected) {
  const ad_bits_listed *first = NULL;
  int64_t numel = 0;
  uint64_t hash = 0;
  for (size_t i = 0; i < count; i++) {
    if (at[i].note.numel == expected->numel) continue;
    if (!first) first = &at[i];
    numel += at[i].note.numel;
    hash += at[i].note.hash;
  }
  int64_t replicas = expected->numel ? numel / expected->numel : 0;
  if (numel == replicas * expected->numel && hash == (uint64_t)replicas * expected->hash) return;
  const ad_bits_listed *differs = find_shard(c, at, count, expected->numel);
  say_differs(c, differs ? differs : first, differs ? differs->rank : -1);
}

/* Compares the notes at[0] to at[count - 1], all of one array or number at one position on the other axes, from every
 * rank that has the array or a shard of it. */
static void compare_same(const comparing *c, const ad_bits_listed *at, size_t count) {
  const ad_bits_listed *expected = ad_bits_list_find(&c->reference, at);
  size_t of_leaf = count_leaf(at, count);
  if (!expected)
    say_no_node(c, at);
  else if (of_leaf > 1)
    say_repeated(c, at, of_leaf);
  else if (!some_full_differ(c, at, count, &expected->note))
    compare_shards(c, at, count, &expected->note);
}

/* Returns 1 if the run must have this note of the reference, on any number of ranks. Sums over nodes between a single
 * leaf and all leaves need not be visible: a collective may compute them internally. */
static int must_be_there(const ad_bits_note *note, int64_t leaves) {
  if (note->of_shard) return 0;
  return note->kind != AD_BITS_SUM || note->beyond || note->node.count == 1 || note->node.count == leaves;
}

/* Finds the first note of the reference, of this step and kind, that the run must have but does not have; NULL if there
 * is none. */
static const ad_bits_listed *find_missing(const comparing *c, int64_t step, ad_bits_kind kind) {
  for (size_t i = 0; i < c->reference.count; i++) {
    const ad_bits_listed *at = &c->reference.list[i];
    if (at->note.step != step || at->note.kind != kind || !must_be_there(&at->note, c->found->leaves)) continue;
    if (!ad_bits_list_find(&c->run, at)) return at;
  }
  return NULL;
}

static size_t same_from(const ad_bits_list *list, size_t from) {
  size_t count = 1;
  while (from + count < list->count && !ad_bits_order(&list->list[from], &list->list[from + count])) count++;
  return count;
}

/* Compares the run's notes of one step and kind, the first of which has index *next, and advances *next past them. */
static void compare_kind(const comparing *c, int64_t step, ad_bits_kind kind, size_t *next) {
  const ad_bits_list *run = &c->run;
  while (*next < run->count && run->list[*next].note.step == step && run->list[*next].note.kind == kind) {
    size_t count = same_from(run, *next);
    if (c->found->equal) compare_same(c, &run->list[*next], count);
    c->found->compared += count;
    *next += count;
  }
  const ad_bits_listed *missing = c->found->equal ? find_missing(c, step, kind) : NULL;
  if (missing) say_missing(c, missing);
}

ad_status ad_bits_compare(const ad_bits_notes *run, const ad_bits_notes *reference, const ad_program *program,
                          ad_bits_finding *out) {
  comparing c = {.program = program, .found = out};
  size_t next = 0;
  out->equal = 1;
  out->compared = 0;
  out->rank = -1;
  out->what = NULL;
  out->param[0] = out->difference[0] = 0;
  AD_TRY(ad_bits_list_create(run, &c.run));
  ad_status status = ad_bits_list_create(reference, &c.reference);
  for (int64_t step = 0; !status && step < out->steps; step++)
    for (int kind = AD_BITS_RAN; kind <= AD_BITS_STATE; kind++) compare_kind(&c, step, (ad_bits_kind)kind, &next);
  ad_bits_list_release(&c.run);
  ad_bits_list_release(&c.reference);
  return status;
}
