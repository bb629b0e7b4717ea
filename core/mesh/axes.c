/* Reads and prints axes and sets of axes, without their sizes. */
#include "base/error.h"
#include "base/text.h"
#include "mesh/words.h"

static const char *const axis_names[AD_AXIS_COUNT] = {
#define AXIS_NAME(code, name) [code] = name,
    AD_AXIS_LIST(AXIS_NAME)
#undef AXIS_NAME
};

const char *ad_axis_name(ad_axis axis) { return (unsigned)axis < AD_AXIS_COUNT ? axis_names[axis] : "unknown"; }

ad_status ad_axes_parse(const char *text, ad_axes *out) {
  AD_NEED(text, out);
  ad_axes axes = 0;
  ad_word word;
  for (const char *cursor = text; ad_word_next(&cursor, ", \t\n", &word);) {
    ad_axes found = ad_word_axes(word);
    char known[128];
    if (!found)
      return ad_fail(
          AD_INVALID,
          "axes \"%.80s\": there is no axis `%.*s`; the axes are %s, and dp for dp_replicate and dp_shard together",
          text, ad_word_shown(word), word.data, ad_axes_known(known, sizeof known));
    axes |= found;
  }
  *out = axes;
  return AD_OK;
}

const char *ad_axes_print(ad_axes axes, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  const char *comma = "";
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (!(axes & AD_AXES(axis))) continue;
    ad_text_add(&text, "%s%s", comma, ad_axis_name((ad_axis)axis));
    comma = ",";
  }
  return buffer;
}
