/* Measures the share of one parameter in the global gradient norm, from the sums that ranks dumped. */
#include "solve/norm_term.h"

#include <math.h>
#include "solve/explain.h"

/* Returns 1 if another rank, whose position differs from that of `rank` on this axis only, holds the same box. */
static int has_replica_along(const ad_parts *parts, const ad_part *part, int64_t rank, int axis) {
  const ad_dump *dump = parts->dump;
  for (size_t i = 0; i < parts->count; i++) {
    if (!ad_box_equal(&parts->param->shape, &parts->parts[i].box, &part->box)) continue;
    for (size_t h = 0; h < parts->parts[i].holder_count; h++) {
      int64_t other = parts->parts[i].holders[h];
      uint32_t beside = ~(1u << axis);
      if (other != rank && ad_stands_with(dump, other, rank, beside)) return 1;
    }
  }
  return 0;
}

/* Sums the squares of every distinct element once, so replicas of a part are skipped. If the parameter is sampled, the
 * sum is scaled up to all elements. */
void ad_norm_measure(const ad_parts *parts, ad_norm_term *out) {
  const ad_dump_param *param = parts->param;
  double square = 0, fourth = 0, n = (double)param->sample, scale = n > 0 ? (double)param->numel / n : 1,
         *values = parts->rows;
  for (size_t p = 0; p < parts->count; p++) {
    const ad_part *part = &parts->parts[p];
    if (!ad_part_is_first_of_its_box(parts, p)) continue;
    for (size_t begin = 0; begin < part->count; begin += AD_ROWS) {
      size_t end = begin + AD_ROWS < part->count ? begin + AD_ROWS : part->count;
      ad_part_read_sum(parts, part, begin, end, values);
      for (size_t i = 0; i < end - begin; i++) {
        double own = values[i] * values[i];
        square += own;
        fourth += own * own;
      }
    }
  }
  *out = (ad_norm_term){.square = square * scale};
  if (param->is_sampled) out->variance = scale * scale * fmax(fourth - square * square / n, 0);
  for (int axis = 0; axis < parts->dump->mesh.count && parts->count; axis++)
    if (has_replica_along(parts, &parts->parts[0], parts->parts[0].holders[0], axis)) out->replicated |= 1u << axis;
}
