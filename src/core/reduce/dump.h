/* Keeping one step's addends as they are handed in, and its sums as they come out, for `addend diff` (docs/dumps.md).
 * dump.c is what reducer.c calls and when something is written; dump_file.c is what stands in a file; dump_mesh.c is
 * the mesh that a file names. */
#ifndef REDUCE_DUMP_H
#define REDUCE_DUMP_H
#include <jansson.h>
#include "addend/safetensors.h"
#include "reduce/reducer.h"

/* One mesh for all parameters, whatever views of it they lie on: its axes are so fine that every axis of every view is
 * one of them or several neighbours together. */
enum { AD_DUMP_FACTORS = 2 * AD_AXIS_COUNT, AD_DUMP_NAME = 32 };
typedef struct ad_dump_factor {
  char name[AD_DUMP_NAME];
  int64_t size, stride;
} ad_dump_factor;
typedef struct ad_dump_mesh {
  ad_dump_factor factor[AD_DUMP_FACTORS]; /* slowest first */
  int count;
} ad_dump_mesh;
/* AD_INVALID, naming two parameters, where there is none. */
ad_status ad_dump_mesh_find(const ad_reducer *reducer, ad_dump_mesh *out) AD_CHECKED;
/* The type that a layout has on the axis which this one is a part of; R on an axis that its mesh does not have. */
ad_type ad_dump_type(const ad_layout *layout, const ad_dump_factor *factor);

typedef struct ad_dumped_param {
  void *values; /* a copy of this microbatch's addend; NULL: it did not arrive */
  ad_dtype dtype;
  void *before; /* what stood in the bucket to which a backward adds; NULL: nothing */
} ad_dumped_param;

struct ad_dump {
  char *folder;
  uint64_t after; /* steps of the reducer before it */
  int64_t step;   /* what the files call it */
  int under_way;  /* the step has begun */
  int has_sums;   /* and ended: they are written */
  int microbatch;
  double divisor; /* of this microbatch; 0: nobody said */
  double norm;    /* of the sums; NaN: nobody said */
  ad_dumped_param *params;
  ad_dump_mesh mesh;
};

/* What reducer.c calls: when a microbatch has begun, before a gradient is taken, when a microbatch's gradients are all
 * there, and when the sums are. They do nothing in a step that nobody asked for. */
ad_status ad_dump_begin_microbatch(ad_reducer *reducer, int begins_step) AD_CHECKED;
ad_status ad_dump_addend(ad_reducer *reducer, size_t param, const ad_array *grad) AD_CHECKED;
ad_status ad_dump_end_microbatch(ad_reducer *reducer) AD_CHECKED;
ad_status ad_dump_sums(ad_reducer *reducer) AD_CHECKED;
/* What ADDEND_DUMP and ADDEND_DUMP_STEP ask for. */
ad_status ad_dump_from_environment(ad_reducer *reducer) AD_CHECKED;
void ad_dump_destroy(ad_reducer *reducer);
/* The same with a warning where the step did not come. */
void ad_dump_end(ad_reducer *reducer);

/* dump_file.c. This rank's number in the parameters' mesh. */
int64_t ad_dump_rank(const ad_reducer *reducer);
/* AD_INVALID for a parameter whose parts are no boxes, and where a file of this rank is there already. */
ad_status ad_dump_check_files(const ad_reducer *reducer) AD_CHECKED;
/* One file of this rank: what the parameters have as addends, or as sums; those replace what was written of this step
 * before. AD_IO. */
ad_status ad_dump_write_addends(const ad_reducer *reducer) AD_CHECKED;
ad_status ad_dump_write_sums(const ad_reducer *reducer) AD_CHECKED;

#endif
