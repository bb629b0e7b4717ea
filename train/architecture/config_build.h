/* Functions that config.c, rotary.c, window.c and harmless.c share when they read a config.json. */
#ifndef ARCHITECTURE_CONFIG_BUILD_H
#define ARCHITECTURE_CONFIG_BUILD_H
#include "architecture/config.h"

/* Adds the value `text`, which is copied, for the recipe key `key`; `from` is the key of config.json. */
ad_status ad_config_give(ad_config *to, const char *key, const char *from, const char *text) AD_CHECKED;
/* Adds to to->refused the reason why addend does not compute what a key of config.json asks for. */
ad_status ad_config_refuse(ad_config *to, const char *key, const char *format, ...) AD_PRINTF(3, 4) AD_CHECKED;
/* Refuses a value with the reason "must be \"silu\", is \"gelu\"", both values written as JSON. */
ad_status ad_config_refuse_value(ad_config *to, const char *key, const char *must, const json_t *is) AD_CHECKED;
/* Returns 1 if a and b are equal numbers or the same JSON. */
int ad_config_equal(const json_t *a, const json_t *b);
/* Prints a value as JSON in one line, cut off at the end of the buffer; returns buffer. */
const char *ad_config_print(const json_t *value, char *buffer, size_t size);
/* Prints a number with the fewest digits that distinguish it from every other double; returns buffer. */
enum { AD_CONFIG_NUMBER = 40 };
const char *ad_config_number(double value, char buffer[AD_CONFIG_NUMBER]);

/* In window.c: reads sliding_window, use_sliding_window and layer_types. */
ad_status ad_config_take_window(const json_t *config, ad_config *to) AD_CHECKED;
/* In harmless.c: returns 1 if the key with this value changes no number that a causal language model computes. */
int ad_config_is_harmless(const char *key, const json_t *value);
/* In rotary.c: reads rope_theta and rope_scaling, or rope_parameters. */
ad_status ad_config_take_rotary(const json_t *config, ad_config *to) AD_CHECKED;

#endif
