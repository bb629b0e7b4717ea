/* Plants a known mistake at its seams. */
#include "base/mistakes.h"

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
    ad_seam_plant(mistake->at[i].seam, (ad_seam_slot){mistake->at[i].function, scene});
}
