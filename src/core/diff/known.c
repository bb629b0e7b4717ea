/* Keeping counts that explained a part, and trying them on others. */
#include "diff/known.h"

#include <math.h>
#include <string.h>
#include "base/memory.h"

/* Multiplications: two to three seconds of one core. */
#define WORK 1e10

static size_t cells(const ad_dump *dump) { return (size_t)(dump->mesh.world * dump->microbatches); }

static int64_t place_of(const ad_dump_mesh *mesh, const int32_t *position) {
  int64_t place = 0;
  for (int axis = 0; axis < mesh->count; axis++) place = place * mesh->size[axis] + position[axis];
  return place;
}

ad_status ad_known_create(const ad_dump *dump, ad_known *out) {
  ad_known known = {.dump = dump};
  AD_TRY(ad_new((size_t)dump->mesh.world, &known.rank_at));
  for (int64_t rank = 0; rank < dump->mesh.world; rank++)
    known.rank_at[place_of(&dump->mesh, dump->position[rank])] = rank;
  *out = known;
  return AD_OK;
}

void ad_known_destroy(ad_known *known) {
  for (size_t i = 0; i < known->count; i++) ad_release(known->list[i].counts);
  ad_release(known->rank_at);
  *known = (ad_known){0};
}

int ad_known_affords(double *spent, size_t n, size_t rows) {
  double work = (double)n * (double)n * ((double)rows / 2 + (double)n);
  if (n > AD_KNOWN_MANY && *spent > 0 && *spent + work > WORK) return 0;
  if (n > AD_KNOWN_MANY) *spent += work;
  return 1;
}

/* The rank that lies to `from` as `rank` lies to `holder`. */
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

/* 0: an addend of the part's was none of theirs. */
static int take_counts(const ad_known *known, const ad_known_counts *from, const ad_members *members, int64_t holder,
                       double *out) {
  for (size_t c = 0; c < members->count; c++) {
    const ad_piece *piece = &members->columns[c].piece;
    int64_t rank = rank_beside(known, piece->rank, holder, from->holder);
    out[c] = from->counts[rank * known->dump->microbatches + piece->microbatch];
    if (isnan(out[c])) return 0;
  }
  return 1;
}

static ad_status try_counts(const ad_parts *parts, const ad_part *part, const double *counts, ad_explanation *why) {
  ad_rounding rounding = ad_rounding_of(parts, part);
  ad_fitness fitness;
  AD_TRY(ad_part_test_first(parts, part, counts, parts->param->expect, &rounding, &fitness));
  if (fitness.holds) AD_TRY(ad_part_test(parts, part, counts, parts->param->expect, &rounding, &fitness));
  why->explains = fitness.holds;
  if (fitness.holds) why->fitness = fitness;
  return AD_OK;
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
  for (size_t i = 0; i < known->count; i++) {
    const ad_known_counts *from = &known->list[i];
    int64_t holders[] = {from->holder, judged->part->holders[0]};
    for (size_t h = 0; h < (holders[0] == holders[1] ? 1 : 2); h++) {
      if (!take_counts(known, from, members, holders[h], why->counts)) continue;
      AD_TRY(try_counts(parts, judged->part, why->counts, why));
      if (!why->explains) continue;
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
  AD_TRY(ad_new(cells(known->dump), &counts));
  for (size_t i = 0; i < cells(known->dump); i++) counts[i] = NAN;
  for (size_t c = 0; c < members->count; c++) {
    const ad_piece *piece = &members->columns[c].piece;
    counts[piece->rank * known->dump->microbatches + piece->microbatch] = judged->why.counts[c];
  }
  if (known->count == AD_KNOWN_COUNTS) ad_release(known->list[--known->count].counts);
  known->list[known->count++] = (ad_known_counts){counts, judged->part->holders[0]};
  move_to_front(known, known->count - 1);
  return AD_OK;
}
