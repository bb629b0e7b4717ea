/* Finds bit-identical addends of one sum, by checksum. How often each of two equal addends was counted cannot be known,
 * even in a right sum; only the total of their counts can. */
#include "read/identical.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/roundoff.h"
#include "addend/safetensors.h"

/* An addend and a checksum of its bytes, for comparison. `column` is the addend's index in its ad_members. */
typedef struct ad_mark {
  uint64_t bits;
  size_t column;
} ad_mark;

static int by_bits(const void *a, const void *b) {
  const ad_mark *one = a, *other = b;
  if (one->bits != other->bits) return one->bits < other->bits ? -1 : 1;
  return (one->column > other->column) - (one->column < other->column);
}

/* Addends with fewer significant bits than this may be equal by chance: a single bf16 number has only 8. */
enum { CHANCE_BITS = 24 };

/* Returns 1 if a little-endian floating-point number is +0 or -0. */
static int is_zero(const unsigned char *element, size_t size) {
  for (size_t i = 0; i + 1 < size; i++)
    if (element[i]) return 0;
  return !(element[size - 1] & 0x7f);
}

static int is_zero_tensor(const ad_safetensor *tensor) {
  size_t size = ad_dtype_size(tensor->dtype), numel = tensor->bytes / size;
  for (size_t i = 0; i < numel; i++)
    if (!is_zero((const unsigned char *)tensor->data + i * size, size)) return 0;
  return 1;
}

int ad_addends_are_zero(const ad_parts *parts) {
  for (size_t m = 0; m < parts->member_count; m++)
    for (size_t i = 0; i < parts->members[m].count; i++)
      if (!is_zero_tensor(parts->members[m].columns[i].piece.tensor)) return 0;
  return 1;
}

/* Returns 1 if the addend has so many significant bits that equality with another addend is hardly chance. Zeros do
 * not count: all zero addends are equal, and their counts do not matter. */
static int says_something(const ad_safetensor *tensor) {
  size_t size = ad_dtype_size(tensor->dtype), numel = tensor->bytes / size;
  double bits = 0, each = -log2(ad_unit_roundoff(tensor->dtype));
  for (size_t i = 0; i < numel && bits < CHANCE_BITS; i++)
    if (!is_zero((const unsigned char *)tensor->data + i * size, size)) bits += each;
  return bits >= CHANCE_BITS;
}

static int same_bits(const ad_safetensor *a, const ad_safetensor *b) {
  return a->dtype == b->dtype && a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes);
}

/* Compares the addends of neighbours along an axis. Returns 1 if there are any and all are identical. */
static int identical_along(const ad_parts *parts, const ad_members *members, int axis) {
  int some = 0;
  for (size_t i = 0; i < members->count; i++)
    for (size_t j = 0; j < members->count; j++) {
      const ad_piece *own = &members->columns[i].piece, *next = &members->columns[j].piece;
      if (own->microbatch != next->microbatch || !ad_dump_is_next(parts->dump, own->rank, next->rank, axis)) continue;
      if (!same_bits(own->tensor, next->tensor) || !says_something(own->tensor)) return 0;
      some = 1;
    }
  return some;
}

uint32_t ad_identical_along(const ad_parts *parts, uint32_t axes) {
  uint32_t found = 0;
  for (int axis = 0; axis < parts->dump->mesh.count; axis++) {
    int all = axes >> axis & 1 && parts->member_count;
    for (size_t m = 0; m < parts->member_count && all; m++) all = identical_along(parts, &parts->members[m], axis);
    if (all) found |= 1u << axis;
  }
  return found;
}

/* Addends are first compared by this many bytes; only those that are equal so far are read to their end. */
enum { FIRST_BYTES = 256 };

/* Sets each mark's checksum to that of the addend's first bytes, at most `most`, then sorts the marks by checksum. */
static void sum_up(const ad_members *members, ad_mark *marks, size_t count, size_t most) {
  for (size_t i = 0; i < count; i++) {
    const ad_safetensor *tensor = members->columns[marks[i].column].piece.tensor;
    marks[i].bits = ad_checksum(tensor->data, tensor->bytes < most ? tensor->bytes : most, 0);
  }
  qsort(marks, count, sizeof *marks, by_bits);
}

/* Keeps only those of the sorted marks whose checksum occurs more than once; returns how many marks it kept. */
static size_t keep_repeated(ad_mark *marks, size_t count) {
  size_t kept = 0;
  for (size_t i = 0, end; i < count; i = end) {
    for (end = i + 1; end < count && marks[end].bits == marks[i].bits;) end++;
    if (end - i < 2) continue;
    memmove(marks + kept, marks + i, (end - i) * sizeof *marks);
    kept += end - i;
  }
  return kept;
}

/* Computes checksums of those addends that may equal another addend, in two passes. The first pass reads the first
 * bytes of each addend. The second pass reads only addends with the same first bytes, to the end. */
static void mark(const ad_members *members, ad_mark *marks, size_t *count) {
  *count = 0;
  for (size_t i = 0; i < members->count; i++)
    if (says_something(members->columns[i].piece.tensor)) marks[(*count)++] = (ad_mark){0, i};
  sum_up(members, marks, *count, FIRST_BYTES);
  *count = keep_repeated(marks, *count);
  sum_up(members, marks, *count, SIZE_MAX);
}

/* Records a set of equal addends: marks their cells and ranks, and adds a sentence such as "ranks 2 and 3 hold the
 * same addend" as a key of `who`. `ranks` is scratch memory with one byte for each rank. */
static void note(const ad_parts *parts, const ad_members *members, const ad_mark *marks, size_t count,
                 unsigned char *ranks, ad_identical *identical) {
  const ad_dump *dump = parts->dump;
  int64_t distinct = 0;
  char words[200], key[256];
  memset(ranks, 0, (size_t)dump->mesh.world);
  for (size_t i = 0; i < count; i++) {
    const ad_piece *piece = &members->columns[marks[i].column].piece;
    distinct += !ranks[piece->rank];
    ranks[piece->rank] = identical->ranks[piece->rank] = 1;
    identical->cells[piece->rank * dump->microbatches + piece->microbatch] = 1;
  }
  ad_dump_ranks_print(&dump->mesh, ranks, words, sizeof words);
  snprintf(key, sizeof key, distinct > 1 ? "%s hold the same addend" : "microbatches of %s hold the same addend",
           words);
  json_object_set_new(identical->who, key, json_true());
}

/* Finds the equal addends among the addends of `members` (ranks that are summed together): runs of two or more marks
 * with the same checksum. */
static ad_status find_in(const ad_parts *parts, const ad_members *members, unsigned char *ranks,
                         ad_identical *identical) {
  ad_mark *marks;
  size_t count;
  AD_TRY(ad_new(members->count, &marks));
  mark(members, marks, &count);
  for (size_t i = 0, end; i < count; i = end) {
    for (end = i + 1; end < count && marks[end].bits == marks[i].bits;) end++;
    if (end - i > 1) note(parts, members, marks + i, end - i, ranks, identical);
  }
  ad_release(marks);
  return AD_OK;
}

static size_t count_cells(const ad_dump *dump) { return (size_t)(dump->mesh.world * dump->microbatches); }

ad_status ad_identical_create(const ad_dump *dump, ad_identical *out) {
  *out = (ad_identical){.who = json_object()};
  ad_status status = ad_new(count_cells(dump), &out->cells);
  if (!status) status = ad_new((size_t)dump->mesh.world, &out->ranks);
  if (status) ad_identical_destroy(out);
  return status;
}

void ad_identical_destroy(ad_identical *identical) {
  ad_release(identical->cells);
  ad_release(identical->ranks);
  json_decref(identical->who);
  *identical = (ad_identical){0};
}

ad_status ad_identical_find(const ad_parts *parts, ad_identical *identical) {
  unsigned char *ranks;
  memset(identical->cells, 0, count_cells(parts->dump));
  memset(identical->ranks, 0, (size_t)parts->dump->mesh.world);
  json_object_clear(identical->who);
  AD_TRY(ad_new((size_t)parts->dump->mesh.world, &ranks));
  ad_status status = AD_OK;
  for (size_t m = 0; m < parts->member_count && !status; m++)
    status = find_in(parts, &parts->members[m], ranks, identical);
  ad_release(ranks);
  return status;
}

void ad_identical_print(const ad_identical *identical, char *out, size_t size) {
  enum { NAMED = 2 };
  ad_text text = ad_text_on(out, size);
  size_t named = 0, count = json_object_size(identical->who);
  const char *who;
  json_t *unused;
  json_object_foreach(identical->who, who, unused) {
    if (named++ < NAMED) ad_text_add(&text, "%s%s", named > 1 ? ", " : "", who);
  }
  if (count == NAMED + 1) ad_text_add(&text, ", and so does 1 other set of ranks");
  if (count > NAMED + 1) ad_text_add(&text, ", and so do %zu other sets of ranks", count - NAMED);
}

void ad_identical_count(const json_t *who, json_t *all) {
  const char *key;
  json_t *unused;
  json_object_foreach((json_t *)who, key, unused)
      json_object_set_new(all, key, json_integer(json_integer_value(json_object_get(all, key)) + 1));
}

void ad_identical_report(const json_t *all, size_t params, int allowed, json_t *messages) {
  const char *who,
      *advice =
          allowed ? ""
                  : "; give each rank its own batch, or allow it (--allow-identical) where they are meant to be equal";
  json_t *count;
  json_object_foreach((json_t *)all, who, count) {
    char of[64] = "";
    if ((size_t)json_integer_value(count) != params)
      snprintf(of, sizeof of, " (%lld of %zu parameters)", (long long)json_integer_value(count), params);
    json_array_append_new(messages, json_sprintf("%s%s, so only the sum of their counts is known%s", who, of, advice));
  }
}
