/* Which sites (matrices that are decomposed) and components a module has, and the batches that modules read. */
#include "decompose/decompose.h"

#include <string.h>

size_t ad_module_of_adv(const ad_decomposition *d) { return d->module_count - 1; }
size_t ad_block_of(size_t module) { return module - 1; }

ad_span ad_sites_of_block(const ad_decomposition *d, size_t block) {
  return ad_cut((int64_t)d->site_count, (int64_t)block, (int64_t)d->block_count);
}

int64_t ad_components_in(const ad_decomposition *d, size_t first, size_t count) {
  int64_t components = 0;
  for (size_t s = first; s < first + count; s++) components += d->sites[s].components;
  return components;
}

static int64_t weights_of(const ad_decomposition *d) {
  int64_t weights = 0;
  for (size_t s = 0; s < d->site_count; s++) weights += d->sites[s].in * d->sites[s].out;
  return weights;
}

/* Reads the batch of a module and sets `counted` to all its positions, including those whose next byte does not count.
 * The counts are the same on all ranks of the module. */
static ad_status read_part(ad_decomposition *d, size_t module, int64_t step, ad_data_split validation,
                           int64_t *counted) {
  ad_decompose_part *of = &d->parts[module];
  memset(counted, 0, (size_t)d->setting.microbatches * sizeof *counted);
  if (!of->is_here) return AD_OK;
  AD_TRY(ad_text_batch_read(&of->batch, step, validation, counted));
  for (size_t m = 0; m < of->batch.count; m++) counted[m] = (int64_t)ad_array_numel(&of->batch.microbatches[m].tokens);
  return AD_OK;
}

ad_status ad_decompose_read(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  ad_decomposition *d = own;
  d->step = step;
  AD_TRY(read_part(d, AD_POOL_CI, step, validation, counted[AD_COUNT_POSITIONS]));
  AD_TRY(read_part(d, ad_module_of_adv(d), step, validation, counted[AD_COUNT_ADV_POSITIONS]));
  for (size_t b = 0; b < d->block_count; b++)
    if (d->parts[1 + b].is_here) AD_TRY(read_part(d, 1 + b, step, validation, counted[AD_COUNT_SITE_POSITIONS]));
  for (int64_t m = 0; m < d->setting.microbatches; m++) {
    counted[AD_COUNT_SITE_POSITIONS][m] *= (int64_t)d->site_count;
    counted[AD_COUNT_WEIGHTS][m] = weights_of(d);
  }
  return AD_OK;
}
