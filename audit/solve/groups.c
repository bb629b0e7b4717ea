/* Tests whether a part of a sum was formed over another group of ranks than its types say. Addends of other shards
 * of the parameter are added as a collective would add them: first element to first element, and so on. */
#include "solve/groups.h"

#include <math.h>
#include <string.h>
#include "base/memory.h"
#include "solve/hypotheses.h"
#include "layout/type.h"

typedef enum ad_place { TAKEN, OTHER_SIZE, OTHER_ELEMENTS } ad_place;

/* Makes the addend of another rank comparable with the part. A sharded addend is treated as if it had the holder's
 * own box, if both boxes have the same size. A sampled sharded addend cannot be treated so, since its elements are
 * others than the holder's. */
static ad_place take_place(const ad_parts *parts, const ad_part *part, const ad_box *own, ad_piece *piece) {
  const ad_shape *shape = &parts->param->shape;
  if (ad_box_contains(shape, &piece->box, &part->box)) return TAKEN;
  for (int dim = 0; dim < shape->ndim; dim++)
    if (piece->box.count[dim] != own->count[dim]) return OTHER_SIZE;
  if (parts->param->is_sampled) return OTHER_ELEMENTS;
  piece->box = *own;
  return TAKEN;
}

static ad_status add_rank(ad_parts *parts, const ad_part *part, const ad_box *own, int64_t rank, ad_members *members,
                          ad_place *place) {
  const ad_dump *dump = parts->dump;
  for (int64_t m = 0; m < dump->microbatches && *place == TAKEN; m++) {
    ad_column *column = &members->columns[members->count];
    int there;
    AD_TRY(ad_dump_piece(dump, parts->param, dump->addends[rank * dump->microbatches + m], &column->piece, &there));
    if (!there) continue;
    *place = take_place(parts, part, own, &column->piece);
    members->count++;
    AD_TRY(ad_sampled_find(&parts->sampled, parts->param, &column->piece.box, &column->piece.sampled));
  }
  return AD_OK;
}

/* Appends to the list of members the addends of all ranks whose positions differ from that of `holder` on `axes`
 * only. */
static ad_status append_members(ad_parts *parts, const ad_part *part, const ad_box *own, int64_t holder, uint32_t axes,
                                ad_members *members, ad_place *place) {
  const ad_dump *dump = parts->dump;
  AD_TRY(ad_new((size_t)(ad_dump_axes_size(&dump->mesh, axes) * dump->microbatches), &members->columns));
  *place = TAKEN;
  for (int64_t rank = 0; rank < dump->mesh.world && *place == TAKEN; rank++)
    if (ad_stands_with(dump, rank, holder, ~axes)) AD_TRY(add_rank(parts, part, own, rank, members, place));
  ad_members_measure(parts, members);
  return AD_OK;
}

/* Sets *out to the factor, by least squares, between the part and the sum of its members' addends; NaN if all
 * addends are zero. */
static ad_status best_factor(const ad_parts *parts, const ad_part *part, double *out) {
  const ad_members *members = ad_part_members(parts, part);
  double *memory, along = 0, square = 0;
  AD_TRY(ad_new(3 * AD_ROWS, &memory));
  double *all = memory, *addend = memory + AD_ROWS, *sum = memory + 2 * AD_ROWS;
  for (size_t begin = 0; begin < part->count; begin += AD_ROWS) {
    size_t end = begin + AD_ROWS < part->count ? begin + AD_ROWS : part->count;
    memset(all, 0, (end - begin) * sizeof *all);
    for (size_t c = 0; c < members->count; c++) {
      ad_part_read(parts, part, &members->columns[c].piece, begin, end, addend);
      for (size_t i = 0; i < end - begin; i++) all[i] += addend[i];
    }
    ad_part_read_sum(parts, part, begin, end, sum);
    for (size_t i = 0; i < end - begin; i++) {
      along += all[i] * sum[i] / parts->param->expect;
      square += all[i] * all[i];
    }
  }
  ad_release(memory);
  *out = along / square;
  return AD_OK;
}

/* Fits *factor, rounded to a simple count, and tests whether the part is *factor times the sum of the addends of
 * parts->members[members], which must be the last entry. */
static ad_status test(ad_parts *parts, const ad_part *part, size_t members, double *factor, ad_fitness *fitness) {
  ad_part same = *part;
  double *ones;
  same.members = members;
  AD_TRY(best_factor(parts, &same, factor));
  *factor = ad_simple_count(&parts->dump->mesh, *factor);
  if (!(*factor > 0)) return AD_OK;
  size_t n = ad_part_members(parts, &same)->count;
  AD_TRY(ad_new(n, &ones));
  for (size_t i = 0; i < n; i++) ones[i] = *factor;
  ad_rounding rounding = ad_rounding_of(parts, &same);
  ad_status status = ad_part_test(parts, &same, ones, parts->param->expect, &rounding, fitness);
  ad_release(ones);
  return status;
}

static ad_status try_axes(ad_parts *parts, const ad_part *part, const ad_box *own, uint32_t axes, double *factor,
                          ad_place *place, ad_fitness *fitness) {
  size_t index = parts->member_count;
  AD_TRY(ad_grow(&parts->members, index, index + 1));
  ad_members *members = &parts->members[index];
  *members = (ad_members){.key = -1};
  ad_status status = append_members(parts, part, own, part->holders[0], axes, members, place);
  *fitness = (ad_fitness){0};
  if (!status && *place == TAKEN && members->count) status = test(parts, part, index, factor, fitness);
  ad_release(members->columns);
  members->columns = NULL;
  return status;
}

static void explain(const ad_parts *parts, ad_judged *judged, uint32_t axes, double factor, const ad_fitness *fitness) {
  const ad_members *members = ad_part_members(parts, judged->part);
  judged->why.groups.bits[axes / 64] |= (uint64_t)1 << axes % 64;
  if (judged->why.explains) return;
  judged->why.explains = judged->why.by_group = 1;
  judged->why.rounded = 0;
  judged->why.fitness = *fitness;
  for (size_t c = 0; c < members->count; c++) {
    int is_in = ad_stands_with(parts->dump, members->columns[c].piece.rank, judged->part->holders[0], ~axes);
    judged->why.counts[c] = is_in ? factor : 0;
    judged->why.errors[c] = 0;
  }
}

static uint32_t sharded_axes(const ad_parts *parts, uint32_t axes) {
  uint32_t sharded = 0;
  for (int axis = 0; axis < parts->dump->mesh.count; axis++)
    if (axes >> axis & 1 && ad_type_is_sharded(parts->param->types[axis])) sharded |= 1u << axis;
  return sharded;
}

/* Finds the box of the addend of the part's first holder. Returns 0 if that rank has no addend. */
static int find_own(const ad_parts *parts, const ad_part *part, ad_box *out) {
  const ad_members *members = ad_part_members(parts, part);
  for (size_t c = 0; c < members->count; c++)
    if (members->columns[c].piece.rank == part->holders[0]) return *out = members->columns[c].piece.box, 1;
  return 0;
}

ad_status ad_try_groups(ad_parts *parts, ad_judged *judged) {
  uint32_t all = ad_large_axes(&parts->dump->mesh, UINT32_MAX), summed = parts->param->summed;
  ad_box own;
  if (!find_own(parts, judged->part, &own)) return AD_OK;
  for (uint32_t axes = all; axes; axes = (axes - 1) & all) {
    double factor = 0;
    ad_place place;
    ad_fitness fitness;
    if (!(axes & ~summed)) continue;
    AD_TRY(try_axes(parts, judged->part, &own, axes, &factor, &place, &fitness));
    if (place == OTHER_ELEMENTS) judged->why.untried |= sharded_axes(parts, axes);
    if (fitness.holds) explain(parts, judged, axes, factor, &fitness);
  }
  return AD_OK;
}
