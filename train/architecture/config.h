/* Reads a config.json, which Transformers writes beside a model's weights, as values of a recipe's keys. */
#ifndef ARCHITECTURE_CONFIG_H
#define ARCHITECTURE_CONFIG_H
#include <jansson.h>
#include "addend/status.h"
#include "architecture/architecture.h"

enum { AD_CONFIG_VALUES_MAX = 40, AD_CONFIG_BYTES_MAX = 1 << 20 };

/* The value of one key of a recipe. */
typedef struct ad_config_value {
  const char *key;  /* the recipe's key: "model.heads" */
  const char *from; /* the key of config.json with the value, or the architecture's name */
  char *text;       /* the value as YAML */
} ad_config_value;

typedef struct ad_config {
  const ad_architecture *architecture;
  ad_config_value values[AD_CONFIG_VALUES_MAX];
  size_t count;
  char **refused; /* what config.json asks for and addend does not compute, a sentence each: "hidden_act: must be
                   * ..." */
  size_t refused_count;
  char **unread; /* keys that request something but change no number */
  size_t unread_count;
  int64_t window;    /* from how many tokens on a sliding window changes attention, which addend does not compute; 0:
                      * there is no window */
  int64_t positions; /* max_position_embeddings: how long sequences were in training; 0: it does not say */
} ad_config;

/* Reads a config.json. AD_INVALID, naming `path`, if it is no JSON object or its architecture is not known. Requests
 * that addend does not compute are no error here; they are listed in out->refused. Release with ad_config_release. */
ad_status ad_config_parse(const char *text, size_t size, const char *path, ad_config *out) AD_CHECKED;
/* Reads a config.json from a file; AD_IO if the file cannot be read. */
ad_status ad_config_read(const char *path, ad_config *out) AD_CHECKED;
/* Logs in one line the keys in config->unread: they request something but change no number. */
void ad_config_report_unread(const ad_config *config, const char *path);
void ad_config_release(ad_config *config);

#endif
