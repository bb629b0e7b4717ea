/* Helper: a run whose backward has two passes, inputs first and weights later. */
#ifndef TRAIN_DEFERRED_H
#define TRAIN_DEFERRED_H
#include "step/run.h"

/* One rank's list of actions in the run's table, and the list with two passes that is made from it. */
typedef struct deferring {
  const ad_table *from;
  ad_table *to;
  int32_t rank, microbatches, deferred;
} deferring;

static ad_status put(const deferring *d, ad_action_kind kind, int32_t stage, int32_t m) {
  ad_action action = {kind, stage, m, 0};
  return ad_table_add(d->to, d->rank, &action);
}

/* Adds the W of this rank's phases for microbatch m, in the order of their B. */
static ad_status put_weights(const deferring *d, int32_t m) {
  for (size_t i = 0; i < ad_table_action_count(d->from, d->rank); i++) {
    const ad_action *action = ad_table_action(d->from, d->rank, i);
    if (action->kind == AD_ACTION_B && action->microbatch == m) AD_TRY(put(d, AD_ACTION_W, action->stage, m));
  }
  return AD_OK;
}

static int goes_back_later(const deferring *d, size_t after, int32_t m) {
  for (size_t i = after + 1; i < ad_table_action_count(d->from, d->rank); i++) {
    const ad_action *action = ad_table_action(d->from, d->rank, i);
    if (action->kind == AD_ACTION_B && action->microbatch == m) return 1;
  }
  return 0;
}

static ad_status put_action(const deferring *d, size_t place) {
  const ad_action *action = ad_table_action(d->from, d->rank, place);
  int32_t m = action->microbatch;
  if (action->kind == AD_ACTION_F) return put(d, AD_ACTION_F, action->stage, m);
  if (action->kind != AD_ACTION_B) return AD_OK;
  AD_TRY(put(d, AD_ACTION_I, action->stage, m));
  return m < d->deferred || goes_back_later(d, place, m) ? AD_OK : put_weights(d, m - d->deferred);
}

static ad_status put_list(const deferring *d) {
  for (size_t i = 0; i < ad_table_action_count(d->from, d->rank); i++) AD_TRY(put_action(d, i));
  for (int32_t m = d->microbatches - d->deferred; m < d->microbatches; m++) AD_TRY(put_weights(d, m));
  return AD_OK;
}

/* Replaces the run's table by one in which each B is an I, and the W of a microbatch comes `deferred` microbatches
 * later, or at the end of the step. Call it before the first step. */
static ad_status defer_weights(ad_run *run, size_t deferred) {
  int32_t count = (int32_t)run->recipe->train.microbatches, most = count - 1;
  deferring d = {.from = run->order.table, .microbatches = count};
  d.deferred = deferred < (size_t)most ? (int32_t)deferred : most;
  AD_TRY(ad_table_create(ad_table_rank_count(d.from), &d.to));
  for (; d.rank < ad_table_rank_count(d.from); d.rank++) AD_TRY(put_list(&d));
  return ad_run_take_table(run, d.to);
}

#endif
