/* What can be said of a text before it is loaded, and its bytes after that. */
#ifndef DATA_TEXT_H
#define DATA_TEXT_H
#include "addend/data.h"

/* The text of a recipe: its `data` keys. */
typedef struct ad_text_options {
  char **text; /* files and folders */
  size_t text_count;
  int64_t seq;   /* tokens of a sample */
  double *valid; /* fraction f of each sample's tokens that count, the first floor(f * seq + 0.5); cyclic by the
                    sample's index in the step's batch, so that it begins anew with every step; none: all count */
  size_t valid_count;
  double held_out; /* fraction h at the end of every file that is kept for validation: its last floor(h * bytes) */
} ad_text_options;

/* Whether ad_text_data_open would find enough text, without reading it: its errors, and its message. */
AD_CHECKED ad_status ad_text_data_check(const char *const *paths, size_t count, int64_t seq, double held_out);
/* Of all bytes of all files and where each file ends, whatever part is held out; xxhash64. 0: not read. */
uint64_t ad_text_data_checksum(const ad_text_data *text);
/* The bytes that are trained on, or those that are held out; the text's. */
const uint8_t *ad_text_data_part(const ad_text_data *text, int held_out, int64_t *size);
/* Whether one path names at least one readable file. AD_IO otherwise. */
AD_CHECKED ad_status ad_text_path_check(const char *path);

/* The same without reading any file: the sizes are known, and which tokens count, but not the tokens. For plans. */
AD_CHECKED ad_status ad_text_data_open_unread(const char *const *paths, size_t count, int64_t seq, double held_out,
                                              ad_text_data **out);

#endif
