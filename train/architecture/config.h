/* Reads a config.json, which Transformers writes beside a model's weights, and translates it into values of recipe
 * keys. */
#ifndef ARCHITECTURE_CONFIG_H
#define ARCHITECTURE_CONFIG_H
#include <jansson.h>
#include "addend/status.h"
#include "architecture/architecture.h"

enum { AD_CONFIG_VALUES_MAX = 40, AD_CONFIG_BYTES_MAX = 1 << 20 };

/* The value of one recipe key. */
typedef struct ad_config_value {
  const char *key;  /* the recipe key, "model.heads" for example */
  const char *from; /* where the value comes from: a key of config.json, or the architecture's name */
  char *text;       /* the value as YAML */
} ad_config_value;

typedef struct ad_config {
  const ad_architecture *architecture;
  ad_config_value values[AD_CONFIG_VALUES_MAX];
  size_t count;
  char **refused; /* one sentence for each request of config.json that addend does not compute: "hidden_act: must be
                   * ..." */
  size_t refused_count;
  char **unread; /* keys that ask for something but change no number */
  size_t unread_count;
  int64_t window;    /* from this sequence length on a sliding window changes attention, which addend does not
                      * compute; 0: there is no window */
  int64_t positions; /* max_position_embeddings, the longest sequence in training; 0: config.json does not have the
                      * key */
} ad_config;

/* Translates the text of a config.json. Returns AD_INVALID, with `path` in the message, if the text is no JSON object
 * or names an unknown architecture. What addend does not compute is no error here, but is listed in out->refused.
 * Release with ad_config_release. */
ad_status ad_config_parse(const char *text, size_t size, const char *path, ad_config *out) AD_CHECKED;
/* Reads a config.json from a file like ad_config_parse. Returns AD_IO if the file cannot be read. */
ad_status ad_config_read(const char *path, ad_config *out) AD_CHECKED;
/* Logs one line with the keys in config->unread, which ask for something but change no number. */
void ad_config_report_unread(const ad_config *config, const char *path);
void ad_config_release(ad_config *config);

#endif
