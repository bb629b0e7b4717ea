/* Lists the collectives of a step: calls that are the same on several ranks are one entry. */
#include "say/calls.h"

#include <string.h>
#include "files/json.h"

/* Returns a copy of a call as a file has it, with a default for each key that may be left out. */
static json_t *complete(const json_t *call) {
  json_t *own = json_pack("{s:s, s:s, s:[], s:s, s:I, s:I, s:s, s:s, s:[]}", "operation", ad_text_of(call, "operation"),
                          "axes", "", "ranks", "dtype", "", "bytes", (json_int_t)0, "count", (json_int_t)0, "phase", "",
                          "line", "", "params");
  json_object_update_existing(own, (json_t *)call);
  return own;
}

/* Returns the entry of `calls` that has the same keys as `call`, apart from who made it; else adds one. */
static json_t *entry_of(json_t *calls, json_t *call) {
  json_t *entry;
  size_t i;
  json_array_foreach(calls, i, entry) {
    json_object_set(call, "made_by", json_object_get(entry, "made_by"));
    if (json_equal(entry, call)) return entry;
  }
  json_object_set_new(call, "made_by", json_array());
  json_array_append(calls, call);
  return call;
}

static void add_unseen(json_t *unseen, json_t *why) {
  const json_t *other;
  size_t i;
  json_array_foreach(unseen, i, other) if (json_equal(other, why)) return;
  json_array_append(unseen, why);
}

void ad_calls_report(const ad_dump *dump, json_t *document) {
  json_t *calls = json_array(), *unseen = json_array(), *entry;
  int there = 0;
  size_t i;
  for (int64_t rank = 0; rank < dump->mesh.world; rank++) {
    const ad_dump_file *file = dump->sums[rank];
    there |= file->calls != NULL;
    json_array_foreach(file->calls, i, entry) {
      json_t *why = json_object_get(entry, "unseen"), *own = why ? NULL : complete(entry);
      if (why)
        add_unseen(unseen, why);
      else
        json_array_append_new(json_object_get(entry_of(calls, own), "made_by"), json_integer((json_int_t)rank));
      json_decref(own);
    }
  }
  if (there) json_object_set(document, "calls", calls);
  if (there) json_object_set(document, "calls_unseen", unseen);
  json_decref(calls);
  json_decref(unseen);
}
