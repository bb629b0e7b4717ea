/* The recipe keys of the program `moe` and their checks. They can be used without a tape. */
#ifndef MOE_KEYS_H
#define MOE_KEYS_H
#include "decoder/keys.h"
#include "moe/moe.h"

enum { AD_MOE_KEY_COUNT = AD_TEXT_DECODER_KEY_COUNT + 12 };
extern const ad_key ad_moe_keys[AD_MOE_KEY_COUNT];

/* The function of the program's record that checks a recipe; `options` is an ad_moe_options. */
void ad_moe_check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to);
/* Makes the view of the mesh on which the experts lie: the recipe's `sparse`, or a default if it is not given. */
ad_status ad_moe_view(const ad_moe_options *options, const ad_mesh *mesh, ad_mesh **out) AD_CHECKED;

#endif
