/* Lists of the samples that lie in a box; each box has one list. */
#include "read/sampled.h"

#include "base/memory.h"

/* Lists the samples in the box. */
static void list_samples(const ad_dump_param *param, const ad_box *box, ad_sampled *list) {
  uint64_t hash = ad_sample_hash(param->name);
  int is_stretch = ad_box_is_stretch(&param->shape, box);
  ad_span of = {0, param->sample};
  if (is_stretch) of = ad_sample_stretch(hash, &param->shape, param->sample, box);
  for (int64_t k = of.first; k < of.first + of.count; k++)
    if (is_stretch || ad_box_has(&param->shape, box, ad_sample_element(hash, k, param->sample, param->numel)))
      list->numbers[list->count++] = k;
}

static ad_status new_sampled(const ad_dump_param *param, const ad_box *box, ad_sampled **out) {
  ad_sampled *list;
  AD_TRY(ad_new(1, &list));
  list->box = *box;
  ad_status status = ad_new((size_t)ad_sample_count(param->name, &param->shape, param->sample, box), &list->numbers);
  if (status) {
    ad_release(list);
    return status;
  }
  list_samples(param, box, list);
  *out = list;
  return AD_OK;
}

ad_status ad_sampled_find(ad_sampled_lists *lists, const ad_dump_param *param, const ad_box *box,
                          const ad_sampled **out) {
  size_t count = lists->count;
  *out = NULL;
  if (!param->is_sampled) return AD_OK;
  for (size_t i = count; i-- > 0 && !*out;)
    if (ad_box_equal(&param->shape, &lists->lists[i]->box, box)) *out = lists->lists[i];
  if (*out) return AD_OK;
  AD_TRY(ad_grow(&lists->lists, count, count + 1));
  AD_TRY(new_sampled(param, box, &lists->lists[count]));
  *out = lists->lists[lists->count++];
  return AD_OK;
}

void ad_sampled_clear(ad_sampled_lists *lists) {
  for (size_t i = 0; i < lists->count; i++) {
    ad_release(lists->lists[i]->numbers);
    ad_release(lists->lists[i]);
  }
  ad_release(lists->lists);
}

/* Returns the index in the list of sample k or, if the list does not have it, of the first sample after k. */
size_t ad_sample_place(const ad_sampled *list, int64_t k) {
  size_t low = 0, high = list->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (list->numbers[middle] < k)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}
