/* What can be said of lines' fonts before they are drawn, and what their files hold. */
#ifndef DATA_LINES_H
#define DATA_LINES_H
#include "addend/data.h"

/* Whether ad_line_data_open would take this font with these options: its errors, and its message. */
AD_CHECKED ad_status ad_line_font_check(const ad_line_options *options, const char *path);
/* xxhash64: as ad_text_data_checksum, and of all fonts in their order, the held-out one last. */
uint64_t ad_line_data_checksum(const ad_line_data *lines);
uint64_t ad_line_data_font_checksum(const ad_line_data *lines);

#endif
