/* The recipe keys of the program `gpt` and their checks. They can be used without a tape. */
#ifndef GPT_KEYS_H
#define GPT_KEYS_H
#include "gpt/gpt.h"
#include "decoder/keys.h"

enum { AD_GPT_KEY_COUNT = AD_TEXT_DECODER_KEY_COUNT + 1 };
extern const ad_key ad_gpt_keys[AD_GPT_KEY_COUNT];

/* The functions of the program's record that check a recipe; `options` is an ad_gpt_options. */
void ad_gpt_check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to);
int64_t ad_gpt_usual(const void *options, const char *key);
/* Returns the width inside the MLP: d_hidden, or its default if d_hidden is 0. */
int64_t ad_gpt_hidden(const ad_gpt_options *options);

#endif
