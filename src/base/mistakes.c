/* Planting a known mistake. */
#include "base/mistakes.h"

#include "base/kernels.h"

#include <string.h>

const char *ad_need_sentence(ad_needs needs) {
  static const char *const sentences[] = {
#define NEED_SENTENCE(code, sentence) sentence,
      AD_NEED_LIST(NEED_SENTENCE)
#undef NEED_SENTENCE
  };
  return sentences[__builtin_ctzll(needs)];
}

void ad_mistake_plant(const ad_mistake *mistake, ad_mistake_scene *scene) {
  *scene = (ad_mistake_scene){.rank = scene->rank, .microbatches = scene->microbatches, .microbatch = -1};
  for (int i = 0; i < AD_MISTAKE_SEAMS && mistake->at[i].function; i++)
    ad_seams[mistake->at[i].seam] = (ad_seam_slot){mistake->at[i].function, scene};
}

void ad_seams_clear(void) { memset(ad_seams, 0, sizeof ad_seams); }

void ad_round_to_bf16(void *values, ad_dtype dtype, size_t numel) {
  uint16_t narrow[512];
  size_t size = ad_dtype_size(dtype);
  for (size_t at = 0; at < numel; at += 512) {
    size_t n = numel - at < 512 ? numel - at : 512;
    ad_cast(narrow, AD_BF16, (char *)values + at * size, dtype, n);
    ad_cast((char *)values + at * size, dtype, narrow, AD_BF16, n);
  }
}
