/* The recipe keys of decompose and their checks. They can be used without a tape. */
#ifndef DECOMPOSE_KEYS_H
#define DECOMPOSE_KEYS_H
#include "decompose/model.h"
#include "decoder/keys.h"
#include "decompose/target.h"

enum { AD_DECOMPOSE_KEY_COUNT = AD_DECODER_KEY_COUNT + 1 + AD_TEXT_KEY_COUNT + 32 };
extern const ad_key ad_decompose_keys[AD_DECOMPOSE_KEY_COUNT];
void ad_decompose_check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                        const ad_complaints *to);
const char *ad_decompose_not_smooth(const void *options);
void ad_decompose_check_files(const void *options, const ad_complaints *to);

/* Lists the products of the target that a pattern of the recipe matches, each with its number of components. The caller
 * releases *out. */
ad_status ad_decompose_sites(const ad_decompose_options *options, const ad_mesh *mesh, ad_site **out,
                             size_t *count) AD_CHECKED;

#endif
