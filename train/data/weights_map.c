/* Reads the map in an index of weights. weights.c opens the files that the map names. */
#include "base/error.h"
#include "files/file.h"
#include "files/json.h"
#include "data/weights.h"

static ad_status wrong(const char *path, const char *what) {
  return ad_fail(
      AD_INVALID,
      "%s: this is not an index of safetensors files, since %s; name the model.safetensors.index.json of a model", path,
      what);
}

static ad_status check_entry(const char *path, const char *tensor, const json_t *file) {
  const char *name = json_string_value(file);
  if (!name)
    return ad_fail(AD_INVALID,
                   "%s: the value of \"%.80s\" in weight_map is not the name of a file; write the name of a file there",
                   path, tensor);
  if (ad_name_is_plain(name)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the tensor \"%.80s\" is in \"%.80s\", but only files in the folder of the index are read; move "
                 "the file there and name it without a folder",
                 path, tensor, name);
}

static ad_status check_map(const char *path, const json_t *map) {
  const char *tensor;
  json_t *file;
  if (!json_is_object(map)) return wrong(path, "the key weight_map is missing");
  if (!json_object_size(map)) return wrong(path, "weight_map is empty");
  json_object_foreach((json_t *)map, tensor, file) AD_TRY(check_entry(path, tensor, file));
  return AD_OK;
}

ad_status ad_weights_map_parse(const char *text, size_t size, const char *path, json_t **out) {
  json_error_t error;
  json_t *index;
  AD_TRY(ad_json_parse(text, size, JSON_REJECT_DUPLICATES, &index, &error));
  if (!index) {
    return ad_fail(AD_INVALID,
                   "%s: this is not an index of safetensors files, since it is not valid JSON (%s at byte %d); name "
                   "the model.safetensors.index.json of a model",
                   path, error.text, error.position);
  }
  json_t *map = json_object_get(index, "weight_map");
  ad_status status = check_map(path, map);
  if (!status) *out = json_incref(map);
  json_decref(index);
  return status;
}
