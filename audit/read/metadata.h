/* One file of a dump and its metadata. Here each key of the metadata is checked by itself; dump.h checks that the
 * files agree with each other. */
#ifndef DIFF_METADATA_H
#define DIFF_METADATA_H
#include <jansson.h>
#include "read/mesh.h"
#include "files/safetensors.h"

typedef enum ad_dump_kind { AD_DUMP_ADDEND, AD_DUMP_SUM, AD_DUMP_REFERENCE } ad_dump_kind;

/* A file of a dump with its parsed metadata. The keys of JSON maps are parameters' names, or patterns of names. */
typedef struct ad_dump_file {
  ad_safetensors *tensors;
  const char *path;
  ad_dump_kind kind;
  int64_t rank;                  /* the rank that wrote the file; only for kinds addend and sum */
  int64_t microbatch;            /* only for kind addend; -1: the addend of the whole step */
  int64_t step;                  /* -1: not given */
  int64_t sample;                /* number of samples a parameter; 0: full tensors */
  double divisor, norm;          /* NaN: not given */
  const char *mesh, *coord;      /* `coord` NULL: the position in the mesh is computed from the rank */
  json_t *types, *shapes, *held; /* maps by name; NULL: not given */
  json_t *sharding, *partial;    /* DCP_SHARDING_INFO and addend.partial: maps by name */
  json_t *assumed;               /* addend.assumed: map from names to axes; NULL: not given */
  json_t *expect, *reduce;       /* a number or text for all parameters, or a map by pattern; NULL: not given */
  json_t *promised;              /* addend.promised: a text for all parameters, or a map by pattern; NULL: not given */
  json_t *inside;                /* addend.inside: map from names to lists; NULL: not given */
  json_t *unjudged, *values;     /* addend.unjudged and addend.values: maps from names to texts; NULL: not given */
  json_t *declared;              /* addend.declared: map from names to lists of rows (declared.h); NULL: not given */
  json_t *shards;                /* addend.shards: map from names to objects; NULL: not given */
  json_t *calls;                 /* addend.calls: list of objects; NULL: not given */
  int repeats; /* 1: this file's metadata on parameters is the same as in the previous file of its kind */
} ad_dump_file;

/* Reads a file's metadata and takes ownership of `tensors`, also on failure. The message of AD_INVALID names file and
 * key. If `plain` is 1, a file without addend.kind is a reference. `like` is the file with which `tensors` shares its
 * header (ad_safetensors_open_like), or NULL; JSON that was parsed for `like` is then shared too. */
ad_status ad_dump_file_read(ad_safetensors *tensors, int plain, const ad_dump_file *like, ad_dump_file *out) AD_CHECKED;
void ad_dump_file_close(ad_dump_file *file);
/* Returns the number or text that `value` gives for the parameter `name`. A number or text is for all parameters; in
 * a map, the last pattern that matches the name decides. Returns NULL if no pattern matches. */
const json_t *ad_dump_choose(const json_t *value, const char *name);

#endif
