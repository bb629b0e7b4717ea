/* One file of a dump and what its metadata says, each key checked for itself; what files say together: dump.h. */
#ifndef DIFF_METADATA_H
#define DIFF_METADATA_H
#include <jansson.h>
#include "diff/mesh.h"
#include "files/safetensors.h"

typedef enum ad_dump_kind { AD_DUMP_ADDEND, AD_DUMP_SUM, AD_DUMP_REFERENCE } ad_dump_kind;

typedef struct ad_dump_file {
  ad_safetensors *tensors;
  const char *path;
  ad_dump_kind kind;
  int64_t rank;                  /* addend, sum */
  int64_t microbatch;            /* addend; -1: of the whole step */
  int64_t step;                  /* -1: not said */
  int64_t sample;                /* 0: whole tensors */
  double divisor, norm;          /* NaN: not said */
  const char *mesh, *coord;      /* coord NULL: from the rank */
  json_t *types, *shapes, *held; /* maps by name; NULL: not said */
  json_t *sharding, *partial;    /* DCP_SHARDING_INFO; addend.partial */
  json_t *expect, *reduce;       /* a number, a text, or a map by pattern; NULL: not said */
  json_t *inside;                /* addend.inside: lists by name; NULL: not said */
  json_t *unjudged, *values;     /* addend.unjudged, addend.values: maps by name of texts; NULL: not said */
  int repeats;                   /* says of every parameter what the file of its kind before it says */
} ad_dump_file;

/* Takes `tensors`, also on failure. AD_INVALID names file and key. `plain`: a file without addend.kind is a reference.
 * `like`: NULL, or a file that `tensors` was opened like, whose maps are taken over where their texts are shared. */
ad_status ad_dump_file_read(ad_safetensors *tensors, int plain, const ad_dump_file *like, ad_dump_file *out) AD_CHECKED;
void ad_dump_file_close(ad_dump_file *file);
/* What a number, a text or a map by pattern has for this name: of the patterns that fit, the last. NULL: nothing. */
const json_t *ad_dump_choose(const json_t *value, const char *name);

#endif
