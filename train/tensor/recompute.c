/* Layers whose values are let go after forward (ad_recompute): before backward reaches a layer, those of its records
 * that backward reads run again, in the order and with everything else that their records have: row counts, positions,
 * numbers of draws. What was chosen and counted is kept. Which records run follows from the records alone, so it is
 * the same on all ranks. */
#include <fnmatch.h>
#include "base/error.h"
#include "base/injection.h"
#include "tensor/tape.h"

/* ---- a layer on the tape ---- */

static int is_chosen(const ad_tape *tape, const char *layer) {
  for (size_t i = 0; i < tape->options.recompute_count; i++)
    if (!fnmatch(tape->options.recompute[i], layer, 0)) return 1;
  return 0;
}

/* Counts the operations recorded after `first` up to `last`. */
static ad_status count_records(const ad_tensor *first, const ad_tensor *last, const char *site, size_t *out) {
  const ad_tensor *each = last;
  *out = 0;
  for (; each && each != first && !each->layer; each = each->previous) *out += each->op != NULL;
  if (each == first) return AD_OK;
  if (each)
    return ad_fail(AD_INVALID,
                   "%s: `recompute` got a layer that has operations of an earlier layer; give a `first` that was "
                   "recorded after the earlier layer's `last`, or is that `last`",
                   site);
  return ad_fail(AD_INVALID,
                 "%s: `recompute` got a `first` that was not recorded before `last`; give what enters the layer", site);
}

/* Lists the layer's operations, in the order in which they were recorded. */
static ad_status list_records(ad_tape *tape, const ad_tensor *first, ad_tensor *last, size_t count, tape_layer **out) {
  tape_layer *layer = ad_arena_take_zeroed(tape->own.arena, sizeof *layer);
  if (!layer) return AD_MEMORY;
  layer->records = ad_arena_take(tape->own.arena, count * sizeof(ad_tensor *) + 1);
  if (!layer->records) return AD_MEMORY;
  layer->count = count;
  for (ad_tensor *each = last; each != first; each = each->previous) {
    if (!each->op) continue;
    layer->records[--count] = each;
    each->layer = layer;
  }
  *out = layer;
  return AD_OK;
}

/* ---- what a layer lets go ---- */

/* Returns 1 if everything of this operation stays: what does not depend on anything that learns (counts, sums of them),
 * what was chosen, losses, and what other tapes read. */
static int stays(const ad_tensor *out) {
  return ad_is_constant(out) || out->op->keeps || out->op->makes_memory || out->is_lent || !out->array.shape.ndim;
}

static void mark_gone(const tape_layer *layer, const ad_tensor *last) {
  for (size_t i = 0; i < layer->count; i++)
    if (stays(layer->records[i]) || layer->records[i] == last) ad_value_owner(layer->records[i])->is_needed = 1;
  for (size_t i = 0; i < layer->count; i++) {
    ad_tensor *each = layer->records[i];
    const ad_tensor *owner = ad_value_owner(each);
    if (stays(each)) continue;
    each->gives_saved = each->has_saved;
    each->gives_value = owner->layer == layer && !owner->is_needed && !stays(owner);
    each->is_forgotten = each->gives_value && !layer->is_kept;
  }
}

/* Gives back the values and saved memory that the layer lets go, except what is marked as needed. */
static ad_status give_back(ad_tape *tape, const tape_layer *layer) {
  for (size_t i = 0; i < layer->count; i++) {
    ad_tensor *each = layer->records[i];
    if (each->gives_saved && !each->needs_saved) AD_TRY(ad_saved_give(tape, each));
    if (!each->gives_value || ad_value_owner(each)->is_needed) continue;
    AD_TRY(ad_value_give(tape, each));
    each->array.data = NULL;
  }
  return AD_OK;
}

static void need_nothing(const tape_layer *layer) {
  for (size_t i = 0; i < layer->count; i++) layer->records[i]->is_needed = layer->records[i]->needs_saved = 0;
}

static ad_status let_go(ad_tape *tape, const ad_tensor *first, ad_tensor *last, int is_kept, const char *site) {
  size_t count;
  tape_layer *layer;
  if (!ad_tape_owns(tape, first))
    return ad_fail(AD_INVALID, "%s: `first` of `recompute` is %s; give what enters the layer", site,
                   ad_tape_foreigner(first));
  AD_TRY(count_records(first, last, site, &count));
  AD_TRY(list_records(tape, first, last, count, &layer));
  layer->is_kept = is_kept;
  need_nothing(layer);
  mark_gone(layer, last);
  if (is_kept) return AD_OK;
  return give_back(tape, layer);
}

void ad_recompute_at(const ad_tensor *first, ad_tensor *last, const char *layer, const char *site) {
  if (!site) site = AD_NO_SITE;
  if (!last || !layer || !ad_tape_owns(last->tape, last) || last->tape->status) return;
  ad_tape *tape = last->tape;
  if (first == last || !last->carries || !tape->options.recompute_count) return;
  ad_status status = let_go(tape, first, last, !is_chosen(tape, layer), site);
  if (status) ad_tape_fail(tape, status);
}

/* ---- running a layer again ---- */

/* Marks what the backward of `out` reads. */
static void need_for_backward(ad_tensor *out) {
  uint64_t unread = ad_operation_unread(out->op, ad_walk_fills(WALK_WHOLE, out));
  for (int i = 0; i < out->operand_count; i++)
    if (!(unread >> i & 1)) out->operand[i]->is_needed = 1;
  if (!ad_operation_is_linear(out->op)) out->is_needed = 1;
}

/* Finds the operations that have to run again: those whose values or saved bytes are gone and are read, by a backward or
 * by an operation that runs again. */
static void find_runs(const tape_layer *layer) {
  need_nothing(layer);
  for (size_t i = layer->count; i-- > 0;) {
    ad_tensor *each = layer->records[i];
    if (each->carries) need_for_backward(each);
    each->runs_again = (each->gives_value && each->is_needed) || (each->gives_saved && each->carries);
    for (int k = 0; each->runs_again && k < each->operand_count; k++) each->operand[k]->is_needed = 1;
  }
}

static ad_status bring_back(ad_tape *tape, const tape_layer *layer) {
  if (layer->is_kept) return AD_OK;
  find_runs(layer);
  for (size_t i = 0; i < layer->count; i++) {
    ad_rerun_passing passing = {tape, layer->records[i]};
    ad_inject(AD_INJECT_RERUN, &passing);
    if (layer->records[i]->runs_again) AD_TRY(ad_tape_run(tape, layer->records[i]));
  }
  return AD_OK;
}

/* After a walk has left the layer: lets it go again, except what a second walk (WALK_WEIGHTS) reads. */
static ad_status leave(ad_tape *tape, tape_layer *layer) {
  if (layer->is_kept && !tape->began_last) return AD_OK;
  need_nothing(layer);
  layer->is_over = tape->walk == WALK_INPUTS;
  for (size_t i = 0; layer->is_over && i < layer->count; i++) ad_need_for_weights(layer->records[i]);
  return give_back(tape, layer);
}

ad_status ad_layer_turn(ad_tape *tape, tape_layer *layer) {
  tape_layer *before = tape->present;
  if (layer && layer->is_over) layer = NULL;
  if (before == layer) return AD_OK;
  tape->present = layer;
  if (before) AD_TRY(leave(tape, before));
  return layer ? bring_back(tape, layer) : AD_OK;
}
