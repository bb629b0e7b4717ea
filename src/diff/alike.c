/* Finding equal addends by checksum, also where every sum is right: then counts are known as a sum only. */
#include "diff/alike.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "io/output.h"

typedef struct ad_mark {
  uint64_t bits;
  size_t column;
} ad_mark;

static int by_bits(const void *a, const void *b) {
  const ad_mark *one = a, *other = b;
  if (one->bits != other->bits) return one->bits < other->bits ? -1 : 1;
  return (one->column > other->column) - (one->column < other->column);
}

/* An addend that is zero is like every other that is: nobody asks for its count. */
static int is_zero(const ad_safetensor *tensor) {
  const char *bytes = tensor->data;
  return !tensor->bytes || (!bytes[0] && !memcmp(bytes, bytes + 1, tensor->bytes - 1));
}

static void mark(const ad_members *members, ad_mark *marks, size_t *count) {
  *count = 0;
  for (size_t i = 0; i < members->count; i++) {
    const ad_safetensor *tensor = members->columns[i].piece.tensor;
    if (!is_zero(tensor)) marks[(*count)++] = (ad_mark){ad_checksum(tensor->data, tensor->bytes, 0), i};
  }
  qsort(marks, *count, sizeof *marks, by_bits);
}

/* The ranks of marks that are alike; how many there are. */
static int64_t take_ranks(const ad_members *members, const ad_mark *marks, size_t count, unsigned char *ranks) {
  int64_t distinct = 0;
  for (size_t i = 0; i < count; i++) {
    int64_t rank = members->columns[marks[i].column].piece.rank;
    distinct += !ranks[rank];
    ranks[rank] = 1;
  }
  return distinct;
}

static void note(const ad_parts *parts, const unsigned char *ranks, int64_t distinct, json_t *found) {
  char words[200], key[256];
  ad_dump_ranks_print(&parts->dump->mesh, ranks, words, sizeof words);
  snprintf(key, sizeof key, distinct > 1 ? "%s hold the same addend" : "microbatches of %s hold the same addend",
           words);
  json_object_set_new(found, key, json_integer(json_integer_value(json_object_get(found, key)) + 1));
}

static void note_runs(const ad_parts *parts, const ad_members *members, const ad_mark *marks, size_t count,
                      unsigned char *ranks, json_t *found) {
  for (size_t i = 0, end; i < count; i = end) {
    for (end = i + 1; end < count && marks[end].bits == marks[i].bits;) end++;
    if (end - i < 2) continue;
    memset(ranks, 0, (size_t)parts->dump->mesh.world);
    note(parts, ranks, take_ranks(members, marks + i, end - i, ranks), found);
  }
}

static ad_status find_in(const ad_parts *parts, const ad_members *members, unsigned char *ranks, json_t *found) {
  ad_mark *marks;
  size_t count;
  AD_TRY(ad_new(members->count, &marks));
  mark(members, marks, &count);
  note_runs(parts, members, marks, count, ranks, found);
  ad_release(marks);
  return AD_OK;
}

ad_status ad_alike_find(const ad_parts *parts, json_t *found) {
  unsigned char *ranks;
  AD_TRY(ad_new((size_t)parts->dump->mesh.world, &ranks));
  ad_status status = AD_OK;
  for (size_t m = 0; m < parts->member_count && !status; m++) status = find_in(parts, &parts->members[m], ranks, found);
  ad_release(ranks);
  return status;
}

void ad_alike_say(const json_t *found, size_t params, json_t *messages) {
  const char *who;
  json_t *count;
  json_object_foreach((json_t *)found, who, count) {
    char of[64] = "";
    if ((size_t)json_integer_value(count) != params)
      snprintf(of, sizeof of, " (%lld of %zu parameters)", (long long)json_integer_value(count), params);
    json_array_append_new(
        messages, json_sprintf("%s%s: only the sum of their counts is known; give each rank its own batch", who, of));
  }
}
