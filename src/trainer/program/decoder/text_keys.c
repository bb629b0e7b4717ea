/* What is wrong with the files of a text, told at the keys that name them. */
#include "program/decoder/text_keys.h"

#include <stdio.h>
#include "addend/data.h"

/* Returns how many cannot be used. */
static size_t check_paths(const ad_text_options *text, const ad_complaints *to) {
  size_t missing = 0;
  for (size_t i = 0; i < text->text_count; i++) {
    char key[40];
    ad_status status = ad_text_path_check(text->text[i]);
    if (!status) continue;
    snprintf(key, sizeof key, "data.text[%zu]", i);
    ad_complain_of(to, key, status);
    missing++;
  }
  return missing;
}

void ad_text_check_files(const ad_text_options *text, const ad_complaints *to) {
  if (check_paths(text, to) || !text->text_count || text->seq < 1) return;
  ad_status status = ad_text_data_check((const char *const *)text->text, text->text_count, text->seq, text->held_out);
  if (status) ad_complain_of(to, status == AD_INVALID ? "data.seq" : "data.text", status);
}
