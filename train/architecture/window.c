/* Reads the keys of sliding windows. addend computes attention to all earlier tokens. A window that is at least as long
 * as a sequence gives the same result, whichever layers have the window. */
#include <string.h>
#include "architecture/config_build.h"

enum { SHOWN = 120 };

/* Refuses every kind of layer except full attention and, if there is a window, sliding attention. */
static ad_status judge_layers(const json_t *list, int windows, ad_config *to) {
  const json_t *element;
  size_t i;
  int others = list && !json_is_null(list) && !json_is_array(list);
  json_array_foreach((json_t *)list, i, element) {
    const char *kind = json_is_string(element) ? json_string_value(element) : "";
    others |= strcmp(kind, "full_attention") != 0 && !(windows && !strcmp(kind, "sliding_attention"));
  }
  if (!others) return AD_OK;
  return ad_config_refuse(to, "layer_types",
                          "every element must be \"full_attention\"%s, since addend computes no other layers",
                          windows ? " or \"sliding_attention\"" : "");
}

/* Reads the width of the window; 0 means no window. Refuses a value that cannot be a width. */
static ad_status take_width(const json_t *value, int64_t absent, int64_t *out, ad_config *to) {
  char shown[SHOWN];
  *out = value ? (json_is_integer(value) ? json_integer_value(value) : 0) : absent;
  if (!value || json_is_null(value) || (json_is_integer(value) && *out > 0)) return AD_OK;
  return ad_config_refuse(to, "sliding_window", "must be null or a number of tokens of at least 1, but is %s",
                          ad_config_print(value, shown, sizeof shown));
}

/* Reads the keys of the window. Qwen's models use the window only if use_sliding_window is true. Other models ignore
 * that key. */
ad_status ad_config_take_window(const json_t *config, ad_config *to) {
  const json_t *use = json_object_get(config, "use_sliding_window");
  int is_on = !to->architecture->has_window_switch || json_is_true(use);
  int64_t width;
  if (use && !json_is_boolean(use) && !json_is_null(use))
    AD_TRY(ad_config_refuse_value(to, "use_sliding_window", "true or false", use));
  AD_TRY(take_width(json_object_get(config, "sliding_window"), to->architecture->window, &width, to));
  to->window = is_on ? width : 0;
  return judge_layers(json_object_get(config, "layer_types"), to->window > 0, to);
}
