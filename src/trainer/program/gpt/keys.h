/* The recipe keys of the program `gpt` and what is said of them: the part of its record that knows no tape. */
#ifndef PROGRAM_GPT_KEYS_H
#define PROGRAM_GPT_KEYS_H
#include "program/gpt/gpt.h"
#include "program/decoder/keys.h"

enum { AD_GPT_KEY_COUNT = AD_TEXT_DECODER_KEY_COUNT + 1 };
extern const ad_key ad_gpt_keys[AD_GPT_KEY_COUNT];

/* Options are an ad_gpt_options, as the record's functions take them. */
void ad_gpt_check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to);
/* Width inside the MLP, where d_hidden is 0 too. */
int64_t ad_gpt_hidden(const ad_gpt_options *options);

#endif
