/* Keeps the counts that explained a wrong sum, and tries them on the sums of other parameters. */
#include "solve/known.h"

#include <math.h>
#include <string.h>
#include "base/memory.h"

/* The limit on the work of fits, in multiplications; they take two to three seconds on one core. */
#define WORK 1e10

/* Returns the number of (rank, microbatch) pairs. */
static size_t cells(const ad_dump *dump) { return (size_t)(dump->mesh.world * dump->microbatches); }

ad_status ad_known_create(const ad_dump *dump, ad_known *out) {
  *out = (ad_known){.dump = dump};
  pthread_mutex_init(&out->lock, NULL);
  pthread_cond_init(&out->moved, NULL);
  ad_status status = ad_new((size_t)dump->mesh.world, &out->rank_at);
  if (!status) status = ad_new(dump->param_count, &out->passed);
  if (status) {
    ad_known_destroy(out);
    return status;
  }
  for (int64_t rank = 0; rank < dump->mesh.world; rank++) out->rank_at[ad_dump_key(dump, rank, 0)] = rank;
  return AD_OK;
}

void ad_known_destroy(ad_known *known) {
  if (!known->dump) return;
  for (size_t i = 0; i < known->count; i++) ad_release(known->list[i].counts);
  ad_release(known->rank_at);
  ad_release(known->passed);
  pthread_mutex_destroy(&known->lock);
  pthread_cond_destroy(&known->moved);
  *known = (ad_known){0};
}

/* ---- threads wait for earlier parameters, so that results are the same in every run ---- */

static size_t index_of(const ad_known *known, const ad_dump_param *param) {
  return (size_t)(param - known->dump->params);
}

/* Waits until ad_known_pass was called for all earlier parameters. */
static void wait_for_turn(ad_known *known, const ad_dump_param *param) {
  pthread_mutex_lock(&known->lock);
  while (known->turn < index_of(known, param)) pthread_cond_wait(&known->moved, &known->lock);
  pthread_mutex_unlock(&known->lock);
}

void ad_known_pass(ad_known *known, const ad_dump_param *param) {
  pthread_mutex_lock(&known->lock);
  known->passed[index_of(known, param)] = 1;
  while (known->turn < known->dump->param_count && known->passed[known->turn]) known->turn++;
  pthread_cond_broadcast(&known->moved);
  pthread_mutex_unlock(&known->lock);
}

/* ---- limiting how many fits one diff makes ---- */

int ad_known_affords(ad_known *known, const ad_dump_param *param, ad_known_fit fit, size_t n, size_t rows) {
  double work = (double)n * (double)n * ((double)rows / 2 + (double)n);
  if (n <= AD_KNOWN_MANY) return 1;
  wait_for_turn(known, param);
  double *spent = fit == AD_KNOWN_FIT ? &known->fitted : &known->weak;
  if (*spent > 0 && *spent + work > WORK) return 0;
  *spent += work;
  return 1;
}

/* The limit on comparisons with other parameters, in values that are sorted; this takes two to three seconds on one
 * core. Finding a tensor in a file takes as long as sorting OPENED values. */
#define COMPARED 2e7
#define OPENED 100

int ad_known_compares(ad_known *known, const ad_dump_param *param) {
  double values = 0;
  for (size_t p = 0; p < known->dump->param_count; p++) values += (double)known->dump->params[p].numel;
  if (known->alone) return 0;
  wait_for_turn(known, param);
  double params = fmin((double)known->dump->param_count, AD_PATTERN_PARAMS), world = (double)known->dump->mesh.world;
  known->compared += fmin(values, AD_PATTERN_VALUES) * (world + 1) + params * (double)cells(known->dump) * OPENED;
  return known->compared <= COMPARED;
}

/* ---- trying the known counts ---- */

/* Returns the rank whose position relative to `from` is the same as that of `rank` relative to `holder`: the
 * differences on each axis are equal, cyclically. */
static int64_t rank_beside(const ad_known *known, int64_t rank, int64_t holder, int64_t from) {
  const ad_dump *dump = known->dump;
  int64_t place = 0;
  if (holder == from) return rank;
  for (int axis = 0; axis < dump->mesh.count; axis++) {
    int64_t size = dump->mesh.size[axis], on = dump->position[rank][axis] - dump->position[holder][axis];
    int64_t at = dump->position[from][axis] + on;
    place = place * size + (at < 0 ? at + size : at >= size ? at - size : at);
  }
  return known->rank_at[place];
}

/* Returns 1 if at most AD_KNOWN_OTHERS counts differ from `usual` and none is NaN; lists those that differ. */
static int find_others(ad_known_counts *known, size_t n, double usual) {
  known->usual = usual;
  known->other_count = 0;
  if (isnan(usual)) return 0;
  for (size_t i = 0; i < n; i++) {
    if (known->counts[i] == usual && signbit(known->counts[i]) == signbit(usual)) continue; /* 0 and -0 are distinct */
    if (isnan(known->counts[i]) || known->other_count == AD_KNOWN_OTHERS) return 0;
    known->others[known->other_count++] = i;
  }
  return 1;
}

/* Looks for a value that nearly all counts have, among the first, middle and last count. If there is none, all
 * counts are kept one by one. */
static void find_usual(ad_known_counts *known, size_t n) {
  const size_t places[] = {0, n / 2, n - 1};
  for (size_t i = 0; i < sizeof places / sizeof *places && !known->is_plain; i++)
    known->is_plain = find_others(known, n, known->counts[places[i]]);
}

/* Does the same as take_counts if every rank has an addend of every microbatch, so that addend c has the c-th known
 * count. Copies the usual count, and moves the few other counts. */
static void take_plain(const ad_known *known, const ad_known_counts *from, size_t n, int64_t holder, double *out) {
  int64_t microbatches = known->dump->microbatches;
  for (size_t c = 0; c < n; c++) out[c] = from->usual;
  for (size_t i = 0; i < from->other_count; i++) {
    int64_t rank = (int64_t)from->others[i] / microbatches, microbatch = (int64_t)from->others[i] % microbatches;
    out[rank_beside(known, rank, from->holder, holder) * microbatches + microbatch] = from->counts[from->others[i]];
  }
}

/* Sets out[c] to the count that explained another part, `from`, with its ranks moved by the difference between the
 * positions of that part's holder and of `holder`. Returns 0 if the other part had no addend for one of these members.
 * */
static int take_counts(const ad_known *known, const ad_known_counts *from, const ad_members *members, int64_t holder,
                       double *out) {
  if (from->is_plain && members->count == cells(known->dump))
    return take_plain(known, from, members->count, holder, out), 1;
  for (size_t c = 0; c < members->count; c++) {
    const ad_piece *piece = &members->columns[c].piece;
    int64_t rank = rank_beside(known, piece->rank, holder, from->holder);
    out[c] = from->counts[rank * known->dump->microbatches + piece->microbatch];
    if (isnan(out[c])) return 0;
  }
  return 1;
}

static void move_to_front(ad_known *known, size_t index) {
  ad_known_counts found = known->list[index];
  memmove(known->list + 1, known->list, index * sizeof found);
  known->list[0] = found;
}

ad_status ad_known_try(ad_known *known, const ad_parts *parts, ad_judged *judged) {
  const ad_members *members = ad_part_members(parts, judged->part);
  ad_explanation *why = &judged->why;
  if (members->count <= AD_KNOWN_MANY) return AD_OK;
  wait_for_turn(known, parts->param);
  for (size_t i = 0; i < known->count; i++) {
    const ad_known_counts *from = &known->list[i];
    int64_t holders[] = {from->holder, judged->part->holders[0]};
    for (size_t h = 0; h < (holders[0] == holders[1] ? 1 : 2); h++) {
      ad_fitness fitness;
      if (!take_counts(known, from, members, holders[h], why->counts)) continue;
      AD_TRY(ad_part_try(parts, judged->part, why->counts, &fitness));
      why->explains = fitness.holds;
      if (!fitness.holds) continue;
      why->fitness = fitness;
      memset(why->errors, 0, members->count * sizeof *why->errors);
      move_to_front(known, i);
      return AD_OK;
    }
  }
  return AD_OK;
}

ad_status ad_known_add(ad_known *known, const ad_parts *parts, const ad_judged *judged) {
  const ad_members *members = ad_part_members(parts, judged->part);
  double *counts;
  if (members->count <= AD_KNOWN_MANY || !judged->why.explains || judged->why.rounded) return AD_OK;
  for (size_t c = 0; c < members->count; c++)
    if (isinf(judged->why.errors[c])) return AD_OK;
  wait_for_turn(known, parts->param);
  AD_TRY(ad_new(cells(known->dump), &counts));
  for (size_t i = 0; i < cells(known->dump); i++) counts[i] = NAN;
  for (size_t c = 0; c < members->count; c++) {
    const ad_piece *piece = &members->columns[c].piece;
    counts[piece->rank * known->dump->microbatches + piece->microbatch] = judged->why.counts[c];
  }
  if (known->count == AD_KNOWN_COUNTS) ad_release(known->list[--known->count].counts);
  ad_known_counts *added = &known->list[known->count++];
  *added = (ad_known_counts){.counts = counts, .holder = judged->part->holders[0]};
  find_usual(added, cells(known->dump));
  move_to_front(known, known->count - 1);
  return AD_OK;
}
