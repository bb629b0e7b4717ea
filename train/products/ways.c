/* Reads and writes a file with a table of ways: one word for each dtype and shape. */
#include "products/ways.h"

#include <string.h>
#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "base/unfinished.h"
#include "files/json.h"

#define FORMAT "addend products 1"

static const char *const shape_names[] = {"vector", "small", "large"};
enum { SHAPES = sizeof shape_names / sizeof *shape_names };

/* The words for the ways of each dtype. The index of a word is stored in the bits of a table. */
static const struct way_names {
  ad_dtype values;
  int first_bit, bits;
  size_t count;
  struct {
    const char *name;
    gemm_way way;
  } ways[3];
} dtypes[] = {
    {AD_F32, 0, 1, 2, {{"openblas", GEMM_BLAS}, {"onednn", GEMM_ONEDNN}}},
    {AD_BF16,
     3,
     2,
     3,
     {{"onednn", GEMM_ONEDNN}, {"widened_openblas", GEMM_WIDEN_BLAS}, {"widened_onednn", GEMM_WIDEN_ONEDNN}}}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* ---- packing the table into bits ---- */

static int way_bit(const struct way_names *names, gemm_shape shape) {
  return names->first_bit + names->bits * (int)shape;
}

static uint32_t mask_of(const struct way_names *names) { return (1u << names->bits) - 1; }

static uint32_t index_at(uint32_t ways, const struct way_names *names, gemm_shape shape) {
  uint32_t index = ways >> way_bit(names, shape) & mask_of(names);
  return index < names->count ? index : 0;
}

static const struct way_names *names_of(ad_dtype values) { return values == AD_BF16 ? &dtypes[1] : &dtypes[0]; }

gemm_way ad_ways_at(uint32_t ways, ad_dtype values, gemm_shape shape) {
  const struct way_names *names = names_of(values);
  return names->ways[index_at(ways, names, shape)].way;
}

static uint32_t with_index(uint32_t ways, const struct way_names *names, gemm_shape shape, size_t index) {
  int place = way_bit(names, shape);
  return (ways & ~(mask_of(names) << place)) | (uint32_t)index << place;
}

uint32_t ad_ways_with(uint32_t ways, ad_dtype values, gemm_shape shape, gemm_way way) {
  const struct way_names *names = names_of(values);
  for (size_t i = 0; i < names->count; i++)
    if (names->ways[i].way == way) return with_index(ways, names, shape, i);
  return ways;
}

const char *ad_ways_print(uint32_t ways, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  for (size_t d = 0; d < DTYPES; d++) {
    ad_text_add(&text, "%s%s", d ? ", " : "", ad_dtype_name(dtypes[d].values));
    for (int shape = 0; shape < SHAPES; shape++)
      ad_text_add(&text, " %s", dtypes[d].ways[index_at(ways, &dtypes[d], (gemm_shape)shape)].name);
  }
  return buffer;
}

/* ---- reading a table from a file ---- */

static ad_status no_such_way(const char *path, const struct way_names *names, int shape, const char *word) {
  char words[128];
  ad_text text = ad_text_on(words, sizeof words);
  for (size_t i = 0; i < names->count; i++) ad_text_add(&text, "%s%s", i ? ", " : "", names->ways[i].name);
  return ad_fail(AD_INVALID, "%s: `%s.%s` must be one of %s, but is %s", path, ad_dtype_name(names->values),
                 shape_names[shape], words, word ? word : "missing");
}

static ad_status read_way(const char *path, const json_t *document, const struct way_names *names, int shape,
                          uint32_t *ways) {
  const json_t *of_dtype = json_object_get(document, ad_dtype_name(names->values));
  const char *word = json_string_value(json_object_get(of_dtype, shape_names[shape]));
  for (size_t i = 0; word && i < names->count; i++) {
    if (strcmp(word, names->ways[i].name) != 0) continue;
    *ways = with_index(*ways, names, (gemm_shape)shape, i);
    return AD_OK;
  }
  return no_such_way(path, names, shape, word);
}

static ad_status read_units(const char *path, const json_t *document, ad_units units) {
  const char *word = json_string_value(json_object_get(document, "instructions"));
  int measured = AD_UNITS_PLAIN;
  while (word && measured <= AD_UNITS_AMX && strcmp(word, ad_units_name((ad_units)measured)) != 0) measured++;
  if (!word || measured > AD_UNITS_AMX)
    return ad_fail(AD_INVALID,
                   "%s: the key `instructions` must name instructions that addend knows, but is %s; measure again with "
                   "`addend bench --op products --write FILE`",
                   path, word ? word : "missing");
  if ((ad_units)measured <= units) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s was measured on a processor with %s, but this processor has %s; measure here with `addend bench "
                 "--op products --write FILE`",
                 path, word, ad_units_name(units));
}

static ad_status read_ways(const char *path, const json_t *document, ad_units units, uint32_t *out) {
  const char *format = json_string_value(json_object_get(document, "format"));
  uint32_t ways = 0;
  if (!format || strcmp(format, FORMAT) != 0)
    return ad_fail(AD_INVALID,
                   "%s: this is not a table of products, since `format` is not \"" FORMAT
                   "\"; name a file that `addend bench --op products --write FILE` made",
                   path);
  AD_TRY(read_units(path, document, units));
  for (size_t d = 0; d < DTYPES; d++)
    for (int shape = 0; shape < SHAPES; shape++) AD_TRY(read_way(path, document, &dtypes[d], shape, &ways));
  *out = ways;
  return AD_OK;
}

ad_status ad_ways_read(const char *path, ad_units units, uint32_t *out) {
  json_t *document;
  AD_TRY(ad_json_read(path, &document));
  ad_status status = read_ways(path, document, units, out);
  json_decref(document);
  if (!status && !ad_onednn_version())
    return ad_fail(AD_INVALID,
                   "%s: addend was built without oneDNN, so OpenBLAS computes all products, and a table of products "
                   "has no use; unset ADDEND_PRODUCTS",
                   path);
  return status;
}

/* ---- writing a table to a file ---- */

static json_t *ways_document(const struct way_names *names, uint32_t ways) {
  json_t *document = json_object();
  for (int shape = 0; shape < SHAPES; shape++)
    json_object_set_new(document, shape_names[shape],
                        json_string(names->ways[index_at(ways, names, (gemm_shape)shape)].name));
  return document;
}

static json_t *document_of(ad_units units, uint32_t ways) {
  char processor[256];
  json_t *document = json_pack("{ss ss so}", "format", FORMAT, "instructions", ad_units_name(units), "processor",
                               ad_json_text(ad_processor_print(processor, sizeof processor)));
  for (size_t d = 0; d < DTYPES; d++)
    json_object_set_new(document, ad_dtype_name(dtypes[d].values), ways_document(&dtypes[d], ways));
  return document;
}

static ad_status dump(FILE *file, void *context) {
  int failed = json_dumpf(context, file, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
  fputs("\n", file);
  return failed && !ferror(file) ? ad_fail(AD_MEMORY, "no memory to write the table of products") : AD_OK;
}

ad_status ad_ways_write(const char *path, ad_units units, uint32_t ways) {
  json_t *document = document_of(units, ways);
  if (!document) return ad_fail(AD_MEMORY, "no memory to write the table of products");
  ad_status status = ad_unfinished_write(path, dump, document, NULL);
  json_decref(document);
  return status;
}
