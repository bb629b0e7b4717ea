/* Simulates a table. Each rank performs actions as far as it can; a rank that waits for another rank's action continues
 * when that rank has performed it. */
#include "schedule/execute.h"

#include "base/memory.h"

/* ---- costs of actions ---- */

static double or_else(double given, double fallback) { return given > 0 ? given : fallback; }

/* Returns the cost that the caller gave for this single action. of_action has rows for F, B, I and W, the first kinds,
 * in this order. */
static double own_cost(const ad_table_costs *costs, const ad_action *action) {
  if (action->kind > AD_ACTION_W) return 0;
  size_t row = (size_t)action->kind * costs->stage_count + (size_t)action->stage;
  return costs->of_action[row * costs->microbatch_count + (size_t)action->microbatch];
}

double ad_table_cost_of(const ad_table_costs *costs, const ad_action *action) {
  if (costs->of_action) return own_cost(costs, action);
  double factor = costs->of_stage && (size_t)action->stage < costs->stage_count ? costs->of_stage[action->stage] : 1;
  switch (action->kind) {
    case AD_ACTION_F:
      return factor * or_else(costs->f, 1);
    case AD_ACTION_B:
      return factor * or_else(costs->b, 2);
    case AD_ACTION_I:
      return factor * or_else(costs->i, 1);
    case AD_ACTION_W:
      return factor * or_else(costs->w, 1);
    default:
      return 0;
  }
}

/* ---- lists of ranks that wait for another rank's action ---- */

static const ad_action *action_at(const ad_execution *run, ad_table_spot at) {
  return &run->index->table->rows[at.rank].actions[at.place];
}

static int is_done(const ad_execution *run, ad_table_spot at) { return at.place < run->place[at.rank]; }
static int is_next(const ad_execution *run, ad_table_spot at) { return at.place == run->place[at.rank]; }

/* Puts a rank on the stack of ranks that may continue. */
static void wake(ad_execution *run, int32_t rank) {
  if (run->is_ready[rank]) return;
  run->is_ready[rank] = 1;
  run->ready[run->ready_count++] = rank;
}

static void wake_waiters(ad_execution *run, int32_t rank) {
  int32_t waiter = run->waiter[rank];
  run->waiter[rank] = -1;
  for (int32_t after; waiter >= 0; waiter = after) {
    after = run->next[waiter];
    wake(run, waiter);
  }
}

/* Records the action for which a rank waits, and adds the rank to the waiters of the rank that performs it. */
static void wait_for(ad_execution *run, int32_t rank, ad_table_spot what) {
  run->waits_for[rank] = what;
  if (what.rank == rank || run->waiter[what.rank] == rank) return;
  run->next[rank] = run->waiter[what.rank];
  run->waiter[what.rank] = rank;
}

/* ---- performing one action, if all actions that it needs have ended ---- */

/* Sets the times at which the action begins and ends, and moves its rank to the next action. */
static void run_action(ad_execution *run, ad_table_spot at, double from, double cost) {
  size_t number = ad_table_number(run->index, at);
  run->begin[number] = from;
  run->end[number] = from + cost;
  run->clock[at.rank] = from + cost;
  run->place[at.rank]++;
}

static int is_receive(const ad_action *action) {
  return ad_action_is_transfer(action->kind) && ad_action_is_receive(action->kind);
}

/* Returns 1 if the message of this RECV was sent, and raises *from to the time of its arrival. Otherwise sets *open to
 * the SEND. */
static int has_arrived(ad_execution *run, ad_table_spot receive, double *from, ad_table_spot *open) {
  ad_table_spot sent = ad_table_other_end(run->index, action_at(run, receive));
  *open = sent;
  if (!is_done(run, sent)) return 0;
  double arrives = run->end[ad_table_number(run->index, sent)] + run->costs.transfer;
  size_t number = ad_table_number(run->index, receive);
  if (arrives < run->begin[number]) arrives = run->begin[number];
  run->end[number] = arrives;
  if (arrives > *from) *from = arrives;
  return 1;
}

/* Returns 1 if the needed action has ended, and raises *from to its end. Otherwise sets *open to the needed action. */
static int need_is_done(ad_execution *run, ad_table_spot need, double *from, ad_table_spot *open) {
  *open = need;
  if (!is_done(run, need)) return 0;
  if (run->sends == AD_SENDS_OVERLAPPED && is_receive(action_at(run, need))) return has_arrived(run, need, from, open);
  double end = run->end[ad_table_number(run->index, need)];
  if (end > *from) *from = end;
  return 1;
}

/* Returns 1 if all actions that the action at `at` needs have ended, and raises *from to the latest end. Otherwise sets
 * *open to the first needed action that has not ended. */
static int needs_are_done(ad_execution *run, ad_table_spot at, double *from, ad_table_spot *open) {
  ad_table_needs needs = ad_table_needs_of(run->index, at);
  ad_table_spot need;
  if (run->sends == AD_SENDS_OVERLAPPED && is_receive(action_at(run, at))) return 1;
  while (ad_table_needs_next(&needs, &need))
    if (!need_is_done(run, need, from, open)) return 0;
  return 1;
}

/* Returns 1 if this transfer's SEND and RECV are performed together: if sends block, and the table has no WAIT_SEND.
 * The times of such a simulation are never used. */
static int is_meeting(const ad_execution *run, const ad_action *action) {
  int sends = action->kind == AD_ACTION_SEND_F || action->kind == AD_ACTION_SEND_B;
  int receives = action->kind == AD_ACTION_RECV_F || action->kind == AD_ACTION_RECV_B;
  return run->sends == AD_SENDS_BLOCKING && !run->waits && (sends || receives);
}

/* Performs a SEND and its RECV together, if they are the next actions of their ranks. */
static int meet(ad_execution *run, ad_table_spot at, const ad_action *action) {
  ad_table_spot other = ad_table_other_end(run->index, action), open;
  ad_table_spot sent = ad_action_is_receive(action->kind) ? other : at;
  double from = 0;
  if (!is_next(run, other)) return wait_for(run, at.rank, other), 0;
  if (!needs_are_done(run, sent, &from, &open)) return wait_for(run, at.rank, open), 0;
  run_action(run, other, from, 0);
  run_action(run, at, from, 0);
  return 1;
}

/* Performs SUMS or NORM of all ranks together, when it is the next action of the last rank, too. Each rank is counted
 * once: a rank that waits here is in no list of waiters, so nothing wakes it before. */
static int meet_all(ad_execution *run, ad_table_spot at, ad_action_kind kind) {
  const ad_table *table = run->index->table;
  double from = 0;
  if (++run->arrived[kind] < table->ranks) return 0;
  for (int32_t r = 0; r < table->ranks; r++)
    if (run->clock[r] > from) from = run->clock[r];
  for (int32_t r = 0; r < table->ranks; r++) {
    run_action(run, ad_table_find_on(run->index, kind, r), from, 0);
    if (r != at.rank) wake(run, r);
  }
  return 1;
}

/* If some ranks wait in SUMS or NORM for ever, records that they wait for the first rank that never reaches it. */
static void find_missing(ad_execution *run, ad_action_kind kind) {
  const ad_table *table = run->index->table;
  if (!run->arrived[kind] || run->arrived[kind] == table->ranks) return;
  int32_t missing = 0;
  while (is_next(run, ad_table_find_on(run->index, kind, missing))) missing++;
  for (int32_t r = 0; r < table->ranks; r++)
    if (is_next(run, ad_table_find_on(run->index, kind, r)))
      run->waits_for[r] = ad_table_find_on(run->index, kind, missing);
}

/* Returns 0 if the action is a WAIT_SEND that must still wait for the other rank's RECV, which happens only if sends
 * block; else 1. */
static int wait_is_over(ad_execution *run, ad_table_spot at, const ad_action *action) {
  if (action->kind != AD_ACTION_WAIT_SEND_F && action->kind != AD_ACTION_WAIT_SEND_B) return 1;
  if (run->sends != AD_SENDS_BLOCKING) return 1;
  ad_table_spot other = ad_table_other_end(run->index, action);
  if (is_done(run, other)) return 1;
  return wait_for(run, at.rank, other), 0;
}

/* Performs the rank's next action. Returns 0 if the rank must wait. */
static int try_next(ad_execution *run, int32_t rank) {
  ad_table_spot at = {rank, run->place[rank]}, open;
  const ad_action *action = action_at(run, at);
  double from = run->clock[rank];
  if (is_meeting(run, action)) return meet(run, at, action);
  if (action->kind == AD_ACTION_SUMS || action->kind == AD_ACTION_NORM) return meet_all(run, at, action->kind);
  if (!wait_is_over(run, at, action)) return 0;
  if (!needs_are_done(run, at, &from, &open)) return wait_for(run, rank, open), 0;
  run_action(run, at, from, ad_table_cost_of(&run->costs, action));
  return 1;
}

static int is_at_end(const ad_execution *run, int32_t rank) {
  return (size_t)run->place[rank] == run->index->table->rows[rank].count;
}

static void go_on(ad_execution *run, int32_t rank) {
  while (!is_at_end(run, rank) && try_next(run, rank)) wake_waiters(run, rank);
}

/* ---- executing the table ---- */

static ad_status allocate(ad_execution *run) {
  size_t ranks = (size_t)run->index->table->ranks, actions = run->index->table->action_count;
  AD_TRY(ad_new(actions, &run->begin));
  AD_TRY(ad_new(actions, &run->end));
  AD_TRY(ad_new(ranks, &run->place));
  AD_TRY(ad_new(ranks, &run->clock));
  AD_TRY(ad_new(ranks, &run->waits_for));
  AD_TRY(ad_new(ranks, &run->waiter));
  AD_TRY(ad_new(ranks, &run->next));
  AD_TRY(ad_new(ranks, &run->ready));
  return ad_new(ranks, &run->is_ready);
}

static int has_waits(const ad_table *table) {
  for (int32_t r = 0; r < table->ranks; r++)
    for (size_t i = 0; i < table->rows[r].count; i++)
      if (table->rows[r].actions[i].kind == AD_ACTION_WAIT_SEND_F ||
          table->rows[r].actions[i].kind == AD_ACTION_WAIT_SEND_B)
        return 1;
  return 0;
}

ad_status ad_execute(const ad_table_index *index, ad_sends sends, const ad_table_costs *costs, ad_execution *out) {
  *out = (ad_execution){.index = index, .sends = sends, .waits = has_waits(index->table)};
  if (costs) out->costs = *costs;
  ad_status status = allocate(out);
  if (status) {
    ad_execution_destroy(out);
    return status;
  }
  for (int32_t r = 0; r < index->table->ranks; r++) out->waiter[r] = out->next[r] = -1;
  for (int32_t r = index->table->ranks; r-- > 0;) wake(out, r);
  while (out->ready_count) {
    int32_t rank = out->ready[--out->ready_count];
    out->is_ready[rank] = 0;
    go_on(out, rank);
  }
  find_missing(out, AD_ACTION_SUMS);
  find_missing(out, AD_ACTION_NORM);
  return AD_OK;
}

void ad_execution_destroy(ad_execution *run) {
  ad_release(run->begin);
  ad_release(run->end);
  ad_release(run->place);
  ad_release(run->clock);
  ad_release(run->waits_for);
  ad_release(run->waiter);
  ad_release(run->next);
  ad_release(run->ready);
  ad_release(run->is_ready);
}

int32_t ad_execution_stuck(const ad_execution *run) {
  for (int32_t r = 0; r < run->index->table->ranks; r++)
    if (!is_at_end(run, r)) return r;
  return -1;
}
