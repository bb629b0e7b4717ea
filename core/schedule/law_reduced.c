/* The laws of reductions: each stage's last reduction comes after every addend of the stage's gradient, and no
 * reduction is in flight at the end. */
#include "base/memory.h"
#include "schedule/laws.h"

/* The reductions of one stage, among the actions that were checked so far. */
typedef struct reduction {
  int32_t last_at;    /* one more than the position of the stage's last REDUCE; 0: not yet reached */
  int32_t pending_at; /* one more than the position of the stage's REDUCE in flight; 0: none is in flight */
  int waits;          /* 1: the table has a WAIT_REDUCE of the stage */
} reduction;

typedef struct reductions {
  const ad_table_index *index;
  reduction *of_stage;
  char *was; /* for each stage and microbatch, 1: the microbatch's REDUCE was reached */
  ad_table_faults *faults;
} reductions;

static void judge_addend(const reductions *all, ad_table_spot at, const ad_action *action) {
  const reduction *own = &all->of_stage[action->stage];
  if (own->last_at)
    ad_table_fault_at(all->faults, AD_TABLE_LAW_REDUCED, all->index->table, at,
                      "the last reduction of stage %d is earlier, at place %d, so the addend of this action would be "
                      "in no sum; move the REDUCE after this action",
                      action->stage, own->last_at - 1);
}

/* Checks the reduction of one microbatch: the microbatch's addend must come before it, and must not have been reduced
 * before. */
static void judge_each(const reductions *all, ad_table_spot at, const ad_action *action) {
  int32_t s = action->stage, m = action->microbatch;
  ad_table_spot addend = ad_table_find(all->index, AD_ACTION_B, s, m);
  if (addend.rank < 0) addend = ad_table_find(all->index, AD_ACTION_W, s, m);
  char *was = &all->was[(size_t)s * (size_t)all->index->table->microbatches + (size_t)m];
  if (*was || all->of_stage[s].last_at)
    ad_table_fault_at(all->faults, AD_TABLE_LAW_REDUCED, all->index->table, at,
                      "the addend of microbatch %d was already reduced by an earlier REDUCE; leave this REDUCE out", m);
  else if (addend.rank == at.rank && addend.place > at.place)
    ad_table_fault_at(all->faults, AD_TABLE_LAW_REDUCED, all->index->table, at,
                      "the addend of microbatch %d comes later, at place %d; move this REDUCE after that place", m,
                      addend.place);
  *was = 1;
}

static void judge_reduce(const reductions *all, ad_table_spot at, const ad_action *action) {
  reduction *own = &all->of_stage[action->stage];
  if (own->pending_at && own->waits)
    ad_table_fault_at(all->faults, AD_TABLE_LAW_PENDING, all->index->table, at,
                      "the reduction at place %d is not waited for yet; put %dWAIT_REDUCE before this action",
                      own->pending_at - 1, action->stage);
  if (action->microbatch >= 0) judge_each(all, at, action);
  if (action->microbatch < 0 && !own->last_at) own->last_at = at.place + 1;
  own->pending_at = at.place + 1;
}

static void judge_wait(const reductions *all, ad_table_spot at, const ad_action *action) {
  reduction *own = &all->of_stage[action->stage];
  if (!own->pending_at)
    ad_table_fault_at(all->faults, AD_TABLE_LAW_REDUCED, all->index->table, at,
                      "no reduction of stage %d is in flight; leave this action out", action->stage);
  own->pending_at = 0;
}

static void judge_action(const reductions *all, ad_table_spot at) {
  const ad_action *action = &all->index->table->rows[at.rank].actions[at.place];
  if (ad_action_is_addend(action->kind)) judge_addend(all, at, action);
  if (action->kind == AD_ACTION_REDUCE) judge_reduce(all, at, action);
  if (action->kind == AD_ACTION_WAIT_REDUCE) judge_wait(all, at, action);
  if (action->kind == AD_ACTION_UPDATE && all->of_stage[action->stage].waits && all->of_stage[action->stage].pending_at)
    ad_table_fault_at(all->faults, AD_TABLE_LAW_END, all->index->table, at,
                      "the reduction of stage %d is not waited for yet; move this action after a %dWAIT_REDUCE",
                      action->stage, action->stage);
}

/* Checks, after all actions, that the stage was reduced and that its last reduction is not in flight. */
static void judge_stage(const reductions *all, int32_t s, int waits) {
  const reduction *own = &all->of_stage[s];
  int32_t rank = all->index->rank_of[s];
  if (!own->last_at)
    ad_table_fault_of(all->faults, AD_TABLE_LAW_REDUCED, rank, s, -1,
                      "the gradient of stage %d is never reduced, so its addends stay on their ranks; put %dREDUCE "
                      "after the last B or W of this stage",
                      s, s);
  else if (waits && own->pending_at)
    ad_table_fault_at(all->faults, AD_TABLE_LAW_PENDING, all->index->table, (ad_table_spot){rank, own->pending_at - 1},
                      "this reduction is still in flight at the end; put %dWAIT_REDUCE after this action", s);
}

/* Finds the stages that have a WAIT_REDUCE. Returns 1 if there are any, else 0. */
static int find_waits(const reductions *all) {
  const ad_table *table = all->index->table;
  int any = 0;
  for (int32_t r = 0; r < table->ranks; r++)
    for (size_t i = 0; i < table->rows[r].count; i++)
      if (table->rows[r].actions[i].kind == AD_ACTION_WAIT_REDUCE)
        any = all->of_stage[table->rows[r].actions[i].stage].waits = 1;
  return any;
}

static void judge_all(const reductions *all) {
  const ad_table *table = all->index->table;
  int waits = find_waits(all);
  for (int32_t r = 0; r < table->ranks; r++)
    for (size_t i = 0; i < table->rows[r].count; i++) judge_action(all, (ad_table_spot){r, (int32_t)i});
  for (int32_t s = 0; s < table->stages; s++) judge_stage(all, s, waits);
}

ad_status ad_table_law_reduced(const ad_table_index *index, ad_table_faults *faults) {
  reductions all = {index, NULL, NULL, faults};
  const ad_table *table = index->table;
  if (!(table->parts & (AD_TABLE_REDUCTIONS | AD_TABLE_END))) return AD_OK;
  ad_status status = ad_new((size_t)table->stages, &all.of_stage);
  if (!status) status = ad_new((size_t)table->stages * (size_t)table->microbatches, &all.was);
  if (!status) judge_all(&all);
  ad_release(all.of_stage);
  ad_release(all.was);
  return status;
}
