/* Fuzzes config.json: any bytes are refused with a message, or every value that they give belongs to a key of `model`
 * and every refusal names a key; the same bytes give the same result again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "architecture/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds) {
  if (!holds) abort();
}

static void check_values(const ad_config *config, const ad_config *again) {
  require(config->architecture && config->architecture == again->architecture && config->count == again->count);
  for (size_t i = 0; i < config->count; i++) {
    const ad_config_value *value = &config->values[i];
    require(!strncmp(value->key, "model.", 6) && *value->text && *value->from);
    require(!strcmp(value->text, again->values[i].text));
  }
}

static void check_refused(const ad_config *config, const ad_config *again) {
  require(config->refused_count == again->refused_count);
  for (size_t i = 0; i < config->refused_count; i++) {
    require(strstr(config->refused[i], ": ") != NULL);
    require(!strcmp(config->refused[i], again->refused[i]));
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  ad_config config = {0}, again = {0};
  ad_status status = ad_config_parse((const char *)data, size, "fuzz", &config);
  require(ad_config_parse((const char *)data, size, "fuzz", &again) == status);
  if (status) {
    require(!config.architecture && !again.architecture && ad_last_error()[0] != 0);
    return 0;
  }
  check_values(&config, &again);
  check_refused(&config, &again);
  ad_config_release(&config);
  ad_config_release(&again);
  return 0;
}
