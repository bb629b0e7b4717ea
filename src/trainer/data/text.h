/* What can be said of a text before it is loaded, and its bytes after that. */
#ifndef DATA_TEXT_H
#define DATA_TEXT_H
#include "addend/data.h"

/* Whether ad_text_data_open would find enough text, without reading it: its errors, and its message. */
AD_CHECKED ad_status ad_text_data_check(const char *const *paths, size_t count, int64_t seq, double held_out);
/* Of all bytes of all files and where each file ends, whatever part is held out; xxhash64. 0: not read. */
uint64_t ad_text_data_checksum(const ad_text_data *text);
/* The bytes that are trained on, or those that are held out; the text's. */
const uint8_t *ad_text_data_part(const ad_text_data *text, int held_out, int64_t *size);
/* Whether one path names at least one readable file. AD_IO otherwise. */
AD_CHECKED ad_status ad_text_path_check(const char *path);

#endif
