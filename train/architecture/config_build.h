/* Functions that the readers of a config.json (config.c, rotary.c, window.c, harmless.c) use of each other. */
#ifndef ARCHITECTURE_CONFIG_BUILD_H
#define ARCHITECTURE_CONFIG_BUILD_H
#include "architecture/config.h"

/* Adds a value for a recipe's key; the text is copied. */
ad_status ad_config_give(ad_config *to, const char *key, const char *from, const char *text) AD_CHECKED;
/* Adds the sentence that explains why a key of config.json is refused. */
ad_status ad_config_refuse(ad_config *to, const char *key, const char *format, ...) AD_PRINTF(3, 4) AD_CHECKED;
/* Refuses a value: "must be \"silu\", is \"gelu\""; both values as JSON. */
ad_status ad_config_refuse_value(ad_config *to, const char *key, const char *must, const json_t *is) AD_CHECKED;
/* Returns 1 if both are numbers of the same value, or the same JSON. */
int ad_config_equal(const json_t *a, const json_t *b);
/* Prints a value as JSON in one line, shortened to the buffer; returns buffer. */
const char *ad_config_print(const json_t *value, char *buffer, size_t size);
/* Prints a number with as few digits as distinguish it from every other double; returns buffer. */
enum { AD_CONFIG_NUMBER = 40 };
const char *ad_config_number(double value, char buffer[AD_CONFIG_NUMBER]);

/* In window.c: takes sliding_window, use_sliding_window and layer_types. */
ad_status ad_config_take_window(const json_t *config, ad_config *to) AD_CHECKED;
/* In harmless.c: returns 1 if the key with this value changes no number of a causal language model. */
int ad_config_is_harmless(const char *key, const json_t *value);
/* In rotary.c: takes rope_theta with rope_scaling, or rope_parameters. */
ad_status ad_config_take_rotary(const json_t *config, ad_config *to) AD_CHECKED;

#endif
