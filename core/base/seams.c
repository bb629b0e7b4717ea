/* Keeps what is planted at each seam. */
#include "base/seams.h"

#include <string.h>

static ad_seam_slot seams[AD_SEAM_COUNT];

void ad_seam_pass(ad_seam seam, void *passing) {
  const ad_seam_slot *slot = &seams[seam];
  if (__builtin_expect(slot->function != NULL, 0)) slot->function(slot->context, passing);
}

ad_seam_slot ad_seam_plant(ad_seam seam, ad_seam_slot slot) {
  ad_seam_slot before = seams[seam];
  seams[seam] = slot;
  return before;
}

ad_seam_slot ad_seam_planted(ad_seam seam) { return seams[seam]; }

void ad_seams_clear(void) { memset(seams, 0, sizeof seams); }
