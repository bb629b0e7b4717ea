/* Fuzzes pairs of safetensors headers that share most of their text: a file that is opened with the help of a similar
 * one gives what it gives when it is parsed alone, or is refused in the same words. The input's bytes: a plan, the
 * first header, and what the second header has in place of some of it. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "addend/safetensors.h"
#include "files/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LENGTH_BYTES = 8, MOST = 8192 };

typedef struct plan {
  /* length of the first header; place and length of what the second header replaces in it */
  uint16_t length, at, removed;
  uint8_t bytes, more; /* bytes of data, and how many more the second file has */
} plan;

typedef struct made {
  char bytes[LENGTH_BYTES + MOST + 2 * UINT8_MAX], path[40];
  size_t size;
  int opened;
} made;

static void require(int holds) {
  if (!holds) abort();
}

static void add(made *file, const void *bytes, size_t size) {
  memcpy(file->bytes + file->size, bytes, size);
  file->size += size;
}

/* Finishes a memory file, with its path under /proc/self/fd. */
static void finish(made *file, size_t data_bytes) {
  uint64_t length = file->size - LENGTH_BYTES;
  memcpy(file->bytes, &length, sizeof length);
  for (size_t i = 0; i < data_bytes; i++) file->bytes[file->size++] = (char)i;
  file->opened = memfd_create("header", 0);
  require(file->opened >= 0 && write(file->opened, file->bytes, file->size) == (ssize_t)file->size);
  snprintf(file->path, sizeof file->path, "/proc/self/fd/%d", file->opened);
}

static void same_metadata(const ad_safetensors *one, const ad_safetensors *other, const made *keys) {
  uint64_t length;
  memcpy(&length, keys->bytes, sizeof length);
  json_t *header = json_loadb(keys->bytes + LENGTH_BYTES, length, 0, NULL), *value;
  const char *key;
  json_object_foreach(json_object_get(header, "__metadata__"), key, value) {
    const char *text = ad_safetensors_metadata(one, key), *same = ad_safetensors_metadata(other, key);
    require(text && same ? !strcmp(text, same) : text == same);
  }
  json_decref(header);
}

static void same_tensors(const ad_safetensors *shared, const ad_safetensors *alone, const made *file) {
  require(ad_safetensors_count(shared) == ad_safetensors_count(alone));
  for (size_t i = 0; i < ad_safetensors_count(alone); i++) {
    const ad_safetensor *one = ad_safetensors_at(shared, i), *other = ad_safetensors_at(alone, i);
    require(!strcmp(one->name, other->name) && ad_safetensors_find(shared, other->name) == one);
    require(one->dtype == other->dtype && one->bytes == other->bytes && ad_shape_equal(&one->shape, &other->shape));
    size_t place = (size_t)((const char *)other->data - file->bytes);
    require(place + one->bytes <= file->size && !memcmp(one->data, other->data, one->bytes));
  }
}

static void compare(const made *first, const made *second) {
  ad_safetensors *like = NULL, *shared = NULL, *alone = NULL;
  char why[2048] = "";
  if (ad_safetensors_open(first->path, &like)) return;
  ad_status status = ad_safetensors_open_like(second->path, like, &shared);
  if (status) snprintf(why, sizeof why, "%s", ad_last_error());
  require(ad_safetensors_parse(second->bytes, second->size, second->path, &alone) == status);
  require(!status || !strcmp(why, ad_last_error()));
  if (!status) same_metadata(shared, alone, first);
  ad_safetensors_close(like); /* shared text must outlive the first file */
  if (!status) same_metadata(shared, alone, second);
  if (!status) same_tensors(shared, alone, second);
  ad_safetensors_close(shared);
  ad_safetensors_close(alone);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static made first, second;
  plan p;
  if (size < sizeof p || size > MOST) return 0;
  memcpy(&p, data, sizeof p);
  data += sizeof p;
  size -= sizeof p;
  if (p.length > size || p.at > p.length || p.removed > p.length - p.at) return 0;
  first.size = second.size = LENGTH_BYTES;
  add(&first, data, p.length);
  add(&second, data, p.at);
  add(&second, data + p.length, size - p.length);
  add(&second, data + p.at + p.removed, (size_t)(p.length - p.at - p.removed));
  finish(&first, p.bytes);
  finish(&second, (size_t)p.bytes + p.more);
  compare(&first, &second);
  close(first.opened);
  close(second.opened);
  return 0;
}
