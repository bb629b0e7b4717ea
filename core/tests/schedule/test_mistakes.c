/* Tests mutants of schedule tables: each action left out, done twice, done for another microbatch, each two neighbours
 * swapped, a W before its I, a REDUCE before the last addend. An independent world executes the table with values and
 * knows no law; at the end it looks whether every stage was updated by every addend once. The laws must refuse a table
 * exactly if that world does not come to the right end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "addend/schedule.h"

/* ---- tables as lists that a mutation can change ---- */

enum { RANKS_MAX = 4, STAGES_MAX = 6, MICROBATCHES_MAX = 9, LIST_MAX = 256 };

typedef struct lists {
  int ranks, stages, microbatches;
  ad_table_pairs pairs; /* whether messages are ordered by edges or by pairs of ranks */
  int home[STAGES_MAX];
  int count[RANKS_MAX];
  ad_action actions[RANKS_MAX][LIST_MAX];
} lists;

static lists lists_of(const ad_table *table, ad_table_pairs pairs) {
  static lists all;
  memset(&all, 0, sizeof all);
  all.pairs = pairs;
  all.ranks = ad_table_rank_count(table);
  all.stages = ad_table_stage_count(table);
  all.microbatches = ad_table_microbatch_count(table);
  assert_true(all.ranks <= RANKS_MAX && all.stages <= STAGES_MAX && all.microbatches <= MICROBATCHES_MAX);
  for (int r = 0; r < all.ranks; r++) {
    all.count[r] = (int)ad_table_action_count(table, r);
    assert_true(all.count[r] < LIST_MAX);
    for (int i = 0; i < all.count[r]; i++) {
      all.actions[r][i] = *ad_table_action(table, r, (size_t)i);
      if (all.actions[r][i].kind == AD_ACTION_F) all.home[all.actions[r][i].stage] = r;
    }
  }
  return all;
}

static int is_refused(const lists *all) {
  ad_table *table;
  assert_int_equal(ad_table_create(all->ranks, &table), AD_OK);
  for (int r = 0; r < all->ranks; r++)
    for (int i = 0; i < all->count[r]; i++) assert_int_equal(ad_table_add(table, r, &all->actions[r][i]), AD_OK);
  ad_table_options options = {.size = sizeof options, .pairs = all->pairs};
  ad_status status = ad_table_check(table, &options);
  assert_true(status == AD_OK || status == AD_INVALID);
  ad_table_destroy(table);
  return status == AD_INVALID;
}

/* ---- a world that executes a table with values ---- */

enum { WIRES_MAX = 16 }; /* RANKS_MAX squared, and more than twice STAGES_MAX */

typedef struct world {
  const lists *all;
  int at[RANKS_MAX];
  int wrong; /* 1: something was used before it existed, or done twice */
  int forward[STAGES_MAX][MICROBATCHES_MAX], input[STAGES_MAX][MICROBATCHES_MAX];
  int back[STAGES_MAX][MICROBATCHES_MAX], gradient[STAGES_MAX][MICROBATCHES_MAX];
  int addend[STAGES_MAX][MICROBATCHES_MAX]; /* whether the addend of a microbatch is in the stage's bucket */
  int reduced[STAGES_MAX][MICROBATCHES_MAX];
  int is_reduced[STAGES_MAX], is_updated[STAGES_MAX], is_gathered[STAGES_MAX];
  int summed[RANKS_MAX], normed[RANKS_MAX];
  /* Messages on each channel in their order (see wire_of), and how many were sent and received. */
  int comm_dtype[WIRES_MAX][LIST_MAX], sent[WIRES_MAX], received[WIRES_MAX];
  /* Transfers by sending stage and direction: which were sent, arrived, awaited. */
  int is_sent[STAGES_MAX][2][MICROBATCHES_MAX], has_arrived[STAGES_MAX][2][MICROBATCHES_MAX];
  int is_waited[STAGES_MAX][2][MICROBATCHES_MAX], reduction_is_waited[STAGES_MAX];
} world;

static void demand(world *w, int holds) { w->wrong |= !holds; }
static const ad_action *next(const world *w, int r) {
  return w->at[r] < w->all->count[r] ? &w->all->actions[r][w->at[r]] : NULL;
}

/* Whether the table has any action of these kinds. */
static int has(const lists *all, ad_action_kind first, ad_action_kind last) {
  for (int r = 0; r < all->ranks; r++)
    for (int i = 0; i < all->count[r]; i++)
      if (all->actions[r][i].kind >= first && all->actions[r][i].kind <= last) return 1;
  return 0;
}
static int has_gathers(const lists *all) { return has(all, AD_ACTION_GATHER, AD_ACTION_RELEASE); }
static int has_waits(const lists *all) { return has(all, AD_ACTION_WAIT_SEND_F, AD_ACTION_WAIT_SEND_B); }
static int waits_for_reductions(const lists *all) { return has(all, AD_ACTION_WAIT_REDUCE, AD_ACTION_WAIT_REDUCE); }
static int has_end(const lists *all) { return has(all, AD_ACTION_SUMS, AD_ACTION_UPDATE); }

static void set_once(world *w, int *what) {
  demand(w, !*what);
  *what = 1;
}

/* Demands that the value of the stage before is there; the rank's own later actions cannot bring it. */
static void use_input(world *w, int r, int s, int m) {
  if (!s) return;
  demand(w, w->all->home[s - 1] == r ? w->forward[s - 1][m] : w->input[s][m]);
}

static void use_gradient(world *w, int r, int s, int m) {
  if (s == w->all->stages - 1) return;
  demand(w, w->all->home[s + 1] == r ? w->back[s + 1][m] : w->gradient[s][m]);
}

static void compute(world *w, int r, const ad_action *a) {
  int s = a->stage, m = a->microbatch;
  demand(w, w->all->home[s] == r && !w->is_updated[s]);
  demand(w, w->is_gathered[s] || !has_gathers(w->all));
  if (a->kind == AD_ACTION_F) {
    use_input(w, r, s, m);
    set_once(w, &w->forward[s][m]);
  } else if (a->kind != AD_ACTION_W) {
    demand(w, w->forward[s][m]);
    use_gradient(w, r, s, m);
    set_once(w, &w->back[s][m]);
  } else {
    demand(w, w->back[s][m]);
  }
  if (a->kind == AD_ACTION_B || a->kind == AD_ACTION_W) {
    demand(w, !w->is_reduced[s]);
    set_once(w, &w->addend[s][m]);
  }
}

static void reduce(world *w, int s) {
  set_once(w, &w->is_reduced[s]);
  for (int m = 0; m < w->all->microbatches; m++) w->reduced[s][m] = w->addend[s][m];
}

static int is_complete(const world *w, int s) {
  for (int m = 0; m < w->all->microbatches; m++)
    if (!w->reduced[s][m]) return 0;
  return w->is_reduced[s];
}

static int all_are_at(const world *w, ad_action_kind kind) {
  for (int r = 0; r < w->all->ranks; r++)
    if (!next(w, r) || next(w, r)->kind != kind) return 0;
  return 1;
}

static void finish(world *w, ad_action_kind kind) {
  for (int s = 0; s < w->all->stages; s++) {
    for (int m = 0; m < w->all->microbatches; m++) demand(w, w->forward[s][m]);
    if (kind == AD_ACTION_NORM) demand(w, is_complete(w, s));
  }
  for (int r = 0; r < w->all->ranks; r++) {
    if (kind == AD_ACTION_NORM) demand(w, w->summed[r]);
    set_once(w, kind == AD_ACTION_SUMS ? &w->summed[r] : &w->normed[r]);
    w->at[r]++;
  }
}

/* Moves a message from a SEND to the RECV at the other end of its channel, which takes any message. */
static int move(world *w, int r, const ad_action *send) {
  int back = send->kind == AD_ACTION_SEND_B, to = send->stage + (back ? -1 : 1), m = send->microbatch;
  if (to < 0 || to >= w->all->stages || w->all->home[send->stage] != r || w->all->home[to] == r) return w->wrong = 1, 0;
  const ad_action *receive = next(w, w->all->home[to]);
  if (!receive || receive->kind != (back ? AD_ACTION_RECV_B : AD_ACTION_RECV_F) || receive->stage != to) return 0;
  demand(w, receive->microbatch == m && (back ? w->back[send->stage][m] : w->forward[send->stage][m]));
  set_once(w, back ? &w->gradient[to][m] : &w->input[to][m]);
  w->at[w->all->home[to]]++;
  w->at[r]++;
  return 1;
}

/* The channel on which stage `from` sends to stage `to`. */
static int wire_of(const world *w, int from, int to, int back) {
  const int *home = w->all->home;
  return w->all->pairs == AD_TABLE_PAIRS_RANKS ? home[from] * RANKS_MAX + home[to] : 2 * from + back;
}

/* The number by which a message is known on its channel. */
static int message_of(int from, int back, int m) { return (2 * from + back) * MICROBATCHES_MAX + m; }

/* If sends have a separate wait they end immediately, and messages are received in the order in which they were
 * sent. */
static int send(world *w, int r, const ad_action *a) {
  int back = a->kind == AD_ACTION_SEND_B, s = a->stage, m = a->microbatch, to = s + (back ? -1 : 1);
  if (to < 0 || to >= w->all->stages || w->all->home[s] != r || w->all->home[to] == r) return w->wrong = 1, 0;
  demand(w, back ? w->back[s][m] : w->forward[s][m]);
  set_once(w, &w->is_sent[s][back][m]);
  int comm_dtype = wire_of(w, s, to, back);
  w->comm_dtype[comm_dtype][w->sent[comm_dtype]++] = message_of(s, back, m);
  return 1;
}

static int receive(world *w, int r, const ad_action *a) {
  int back = a->kind == AD_ACTION_RECV_B, to = a->stage, m = a->microbatch, from = to + (back ? 1 : -1);
  if (from < 0 || from >= w->all->stages || w->all->home[to] != r) return w->wrong = 1, 0;
  int comm_dtype = wire_of(w, from, to, back);
  if (w->received[comm_dtype] == w->sent[comm_dtype]) return 0;
  demand(w, w->comm_dtype[comm_dtype][w->received[comm_dtype]++] == message_of(from, back, m));
  set_once(w, &w->has_arrived[from][back][m]);
  set_once(w, back ? &w->gradient[to][m] : &w->input[to][m]);
  return 1;
}

static int wait_for_send(world *w, int r, const ad_action *a) {
  int back = a->kind == AD_ACTION_WAIT_SEND_B, s = a->stage, m = a->microbatch;
  demand(w, w->all->home[s] == r && w->is_sent[s][back][m]);
  if (w->wrong || !w->has_arrived[s][back][m]) return 0;
  set_once(w, &w->is_waited[s][back][m]);
  return 1;
}

static int transfer(world *w, int r, const ad_action *a) {
  if (a->kind == AD_ACTION_WAIT_SEND_F || a->kind == AD_ACTION_WAIT_SEND_B) return wait_for_send(w, r, a);
  return a->kind == AD_ACTION_SEND_F || a->kind == AD_ACTION_SEND_B ? send(w, r, a) : receive(w, r, a);
}

static int try_one(world *w, int r) {
  const ad_action *a = next(w, r);
  if (!a) return 0;
  if (a->kind >= AD_ACTION_SEND_F && a->kind <= AD_ACTION_WAIT_SEND_B && has_waits(w->all)) {
    int moved = transfer(w, r, a);
    w->at[r] += moved;
    return moved;
  }
  switch (a->kind) {
    case AD_ACTION_SEND_F:
    case AD_ACTION_SEND_B:
      return move(w, r, a);
    case AD_ACTION_RECV_F:
    case AD_ACTION_RECV_B:
      return 0;
    case AD_ACTION_SUMS:
    case AD_ACTION_NORM:
      return all_are_at(w, a->kind) ? finish(w, a->kind), 1 : 0;
    case AD_ACTION_GATHER:
      set_once(w, &w->is_gathered[a->stage]);
      break;
    case AD_ACTION_RELEASE:
      demand(w, w->is_gathered[a->stage]);
      w->is_gathered[a->stage] = 0;
      break;
    case AD_ACTION_REDUCE:
      reduce(w, a->stage);
      break;
    case AD_ACTION_WAIT_REDUCE:
      demand(w, w->is_reduced[a->stage]);
      set_once(w, &w->reduction_is_waited[a->stage]);
      break;
    case AD_ACTION_UPDATE:
      demand(w, is_complete(w, a->stage) && w->normed[r]);
      set_once(w, &w->is_updated[a->stage]);
      break;
    default:
      compute(w, r, a);
  }
  w->at[r]++;
  return 1;
}

static int comes_to_a_right_end(const lists *all) {
  world w = {.all = all};
  for (int moved = 1; moved && !w.wrong;) {
    moved = 0;
    for (int r = 0; r < all->ranks; r++) moved |= try_one(&w, r);
  }
  for (int r = 0; r < all->ranks; r++) demand(&w, !next(&w, r));
  for (int s = 0; s < all->stages; s++) {
    demand(&w, is_complete(&w, s) && !w.is_gathered[s]);
    demand(&w, w.is_updated[s] || !has_end(all));
    demand(&w, w.reduction_is_waited[s] || !waits_for_reductions(all));
    for (int m = 0; m < all->microbatches; m++) {
      demand(&w, w.forward[s][m] && w.back[s][m]);
      for (int back = 0; back < 2; back++) demand(&w, w.is_sent[s][back][m] == w.is_waited[s][back][m]);
    }
  }
  return !w.wrong;
}

/* ---- every mutation ---- */

typedef struct counts {
  long refused, right;
} counts;
static counts left_out, twice, other_microbatch, swapped, early_weights, early_reductions;

static void judge(const lists *all, counts *of) {
  int right = comes_to_a_right_end(all), refused = is_refused(all);
  if (right == refused) {
    for (int r = 0; r < all->ranks; r++) {
      fprintf(stderr, "rank %d:", r);
      for (int i = 0; i < all->count[r]; i++) {
        char text[AD_ACTION_TEXT_MAX];
        fprintf(stderr, " %s", ad_action_print(&all->actions[r][i], text, sizeof text));
      }
      fprintf(stderr, "\n");
    }
    fail_msg("the world says %s, the laws say %s: %s", right ? "right" : "wrong", refused ? "wrong" : "right",
             refused ? ad_last_error() : "");
  }
  of->refused += refused;
  of->right += right;
}

static void take_out(lists *all, int r, int i) {
  memmove(&all->actions[r][i], &all->actions[r][i + 1], sizeof(ad_action) * (size_t)(all->count[r] - i - 1));
  all->count[r]--;
}

static void put_in(lists *all, int r, int i, ad_action action) {
  memmove(&all->actions[r][i + 1], &all->actions[r][i], sizeof(ad_action) * (size_t)(all->count[r] - i));
  all->actions[r][i] = action;
  all->count[r]++;
}

static int names_microbatch(const ad_action *a) { return a->kind <= AD_ACTION_WAIT_SEND_B; }

/* The place of this action in the rank's list. */
static int find(const lists *all, int r, ad_action_kind kind, int s, int m) {
  for (int i = 0; i < all->count[r]; i++) {
    const ad_action *a = &all->actions[r][i];
    if (a->kind == kind && a->stage == s && a->microbatch == m) return i;
  }
  return -1;
}

static void move_before(lists all, int r, int i, int to, counts *of) {
  ad_action action = all.actions[r][i];
  take_out(&all, r, i);
  put_in(&all, r, to, action);
  judge(&all, of);
}

static int last_addend(const lists *all, int r, int s) {
  for (int i = all->count[r]; i-- > 0;) {
    const ad_action *a = &all->actions[r][i];
    if ((a->kind == AD_ACTION_B || a->kind == AD_ACTION_W) && a->stage == s) return i;
  }
  return -1;
}

static void change_at(const lists *all, int r, int i) {
  const ad_action *a = &all->actions[r][i];
  lists changed = *all;
  take_out(&changed, r, i);
  judge(&changed, &left_out);
  changed = *all;
  put_in(&changed, r, i, *a);
  judge(&changed, &twice);
  for (int other = 0; names_microbatch(a) && other < all->microbatches; other++) {
    if (other == a->microbatch) continue;
    changed = *all;
    changed.actions[r][i].microbatch = other;
    judge(&changed, &other_microbatch);
  }
  if (i) move_before(*all, r, i, i - 1, &swapped);
  if (a->kind == AD_ACTION_W)
    move_before(*all, r, i, find(all, r, AD_ACTION_I, a->stage, a->microbatch), &early_weights);
  if (a->kind == AD_ACTION_REDUCE) move_before(*all, r, i, last_addend(all, r, a->stage), &early_reductions);
}

static void try_all(const char *name, int stages, int ranks, int microbatches, int32_t gathered) {
  ad_table *table;
  ad_table_shape shape = {.size = sizeof shape, .stages = stages, .microbatches = microbatches, .ranks = ranks};
  ad_table_lowering lowering = {
      .size = sizeof lowering, .parts = AD_TABLE_TRANSFERS | AD_TABLE_REDUCTIONS | AD_TABLE_END, .gathered = gathered};
  if (gathered) lowering.parts |= AD_TABLE_GATHERS;
  assert_int_equal(ad_table_make(name, &shape, &table), AD_OK);
  assert_int_equal(ad_table_lower(table, &lowering), AD_OK);
  lists all = lists_of(table, AD_TABLE_PAIRS_EDGE);
  ad_table_destroy(table);
  assert_true(comes_to_a_right_end(&all) && !is_refused(&all));
  for (int r = 0; r < all.ranks; r++)
    for (int i = 0; i < all.count[r]; i++) change_at(&all, r, i);
}

/* Mutates a table that PyTorch lowered, in which sends and reductions have waits. */
static void try_file(const char *name, ad_table_pairs pairs) {
  char path[512];
  ad_table *table;
  snprintf(path, sizeof path, "%s/core/tests/schedule/pytorch/%s.comms.csv", AD_TEST_SOURCE, name);
  if (ad_table_read(path, &table, NULL)) fail_msg("%s", ad_last_error());
  lists all = lists_of(table, pairs);
  ad_table_destroy(table);
  assert_true(comes_to_a_right_end(&all) && !is_refused(&all));
  for (int r = 0; r < all.ranks; r++)
    for (int i = 0; i < all.count[r]; i++) change_at(&all, r, i);
}

static void every_mutant_of_a_table_of_pytorch_is_too(void **state) {
  static const char *const names[] = {"interleaved", "interleaved-deferred", "interleaved-zb", "looped-bfs", "zbv",
                                      "dualpipev"};
  long by_edge = 0, by_ranks = 0; /* neighbours that may be swapped */
  memset(&left_out, 0, sizeof left_out);
  memset(&twice, 0, sizeof twice);
  memset(&other_microbatch, 0, sizeof other_microbatch);
  memset(&swapped, 0, sizeof swapped);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    counts before = swapped;
    try_file(names[i], AD_TABLE_PAIRS_EDGE);
    by_edge += swapped.right - before.right;
    before = swapped;
    try_file(names[i], AD_TABLE_PAIRS_RANKS);
    by_ranks += swapped.right - before.right;
  }
  printf("left out %ld, twice %ld, another microbatch %ld: all refused; neighbours swapped: %ld refused, %ld right\n",
         left_out.refused, twice.refused, other_microbatch.refused, swapped.refused, swapped.right);
  assert_int_equal(left_out.right + twice.right + other_microbatch.right, 0);
  assert_true(by_ranks < by_edge);
  assert_true(left_out.refused > 800 && swapped.refused > 300 && swapped.right > 100);
}

static void every_mutant_is_refused_or_has_no_effect(void **state) {
  static const char *const names[] = {"gpipe", "1f1b", "zb", "leads"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    for (int stages = 2; stages <= 4; stages++)
      for (int microbatches = 1; microbatches <= 4; microbatches++)
        try_all(names[i], stages, stages, microbatches, stages == 3);
  for (int microbatches = 1; microbatches <= 4; microbatches++) {
    try_all("interleaved", 4, 2, microbatches, microbatches % 2 + 1);
    try_all("gpipe", 4, 2, microbatches, 0);
    try_all("accumulate", 1, 1, microbatches, 1);
    try_all("accumulate", 3, 1, microbatches, 2);
  }
  printf(
      "left out %ld, twice %ld, another microbatch %ld, W before I %ld, REDUCE early %ld: all refused; "
      "neighbours swapped: %ld refused, %ld right\n",
      left_out.refused, twice.refused, other_microbatch.refused, early_weights.refused, early_reductions.refused,
      swapped.refused, swapped.right);
  assert_int_equal(left_out.right + twice.right + other_microbatch.right + early_weights.right + early_reductions.right,
                   0);
  assert_true(left_out.refused > 1000 && twice.refused > 1000 && other_microbatch.refused > 1000);
  assert_true(early_weights.refused > 50 && early_reductions.refused > 50);
  assert_true(swapped.refused > 500 && swapped.right > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(every_mutant_is_refused_or_has_no_effect),
                                     cmocka_unit_test(every_mutant_of_a_table_of_pytorch_is_too)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
