/* Installs a known bug at its injection points. */
#include "base/known_bugs.h"

const char *ad_need_sentence(ad_needs needs) {
  static const char *const sentences[] = {
#define NEED_SENTENCE(code, sentence) sentence,
      AD_NEED_LIST(NEED_SENTENCE)
#undef NEED_SENTENCE
  };
  return sentences[__builtin_ctzll(needs)];
}

void ad_known_bug_inject(const ad_known_bug *bug, ad_known_bug_scene *scene) {
  *scene = (ad_known_bug_scene){.rank = scene->rank, .microbatches = scene->microbatches, .microbatch = -1};
  for (int i = 0; i < AD_KNOWN_BUG_POINTS && bug->at[i].function; i++)
    ad_injection_set(bug->at[i].point, (ad_injection){bug->at[i].function, scene});
}
