/* Replaces the folder lines/ in a build without FreeType, which cannot draw lines of text. */
#include "base/error.h"
#include "addend/data.h"

static ad_status refuse_drawing(void) {
  return ad_fail(AD_INVALID,
                 "this addend was built without FreeType, which draws lines of text; run script/setup in addend's "
                 "folder (Debian: libfreetype-dev), and build addend again");
}

ad_status ad_line_font_check(const ad_line_options *options, const char *path) { return refuse_drawing(); }

ad_status ad_line_data_open(const ad_line_options *options, ad_line_data **out) { return refuse_drawing(); }

ad_status ad_line_data_draw(ad_line_data *lines, uint64_t seed, ad_data_part of, uint64_t index, ad_line *out,
                            uint8_t *characters, float *picture) {
  return refuse_drawing();
}

/* Does nothing, because without FreeType there are no lines to close. */
void ad_line_data_close(ad_line_data *lines) {}
int64_t ad_line_data_bytes(const ad_line_data *lines) { return 0; }
uint64_t ad_line_data_checksum(const ad_line_data *lines) { return 0; }
uint64_t ad_line_data_font_checksum(const ad_line_data *lines) { return 0; }
