/* Keeping one step's addends as they are handed in, and its sums as they come out, for `addend diff` (audit/docs/dumps.md).
 * dump.c is what reducer.c calls and when something is written; dump_file.c is what stands in a file; dump_mesh.c is
 * the mesh that a file names. */
#ifndef REDUCE_DUMP_H
#define REDUCE_DUMP_H
#include <jansson.h>
#include "addend/safetensors.h"
#include "reduce/reducer.h"

/* The mesh of a dump: one for all parameters, whichever views they lie on. Its axes are so fine that every axis of
 * every view is one of them, or several neighbours together. */
enum { AD_DUMP_FACTORS = 2 * AD_AXIS_COUNT, AD_DUMP_NAME = 32 };
typedef struct ad_dump_factor {
  char name[AD_DUMP_NAME];
  int64_t size, stride;
} ad_dump_factor;
typedef struct ad_dump_mesh {
  ad_dump_factor factor[AD_DUMP_FACTORS]; /* slowest first */
  int count;
} ad_dump_mesh;
/* Finds the mesh of the reducer's parameters. AD_INVALID, naming two parameters whose views have no such mesh. */
ad_status ad_dump_mesh_find(const ad_reducer *reducer, ad_dump_mesh *out) AD_CHECKED;
/* The layout's type on the axis that contains this factor; R if the layout's mesh has no such axis. */
ad_type ad_dump_type(const ad_layout *layout, const ad_dump_factor *factor);

typedef struct ad_dumped_param {
  void *values; /* a copy of this microbatch's gradient, before any sum; NULL: it did not arrive */
  ad_dtype dtype;
  void *before; /* a copy of the bucket's values before a backward added to them in place; NULL: it does not */
} ad_dumped_param;

struct ad_dump {
  char *folder;
  uint64_t after; /* how many steps the reducer finishes before the dumped one */
  int64_t step;   /* the step's number in the files */
  int in_flight;  /* 1: the step that is dumped has begun */
  int has_sums;   /* 1: that step has ended, and its sums are written */
  int microbatch;
  double divisor; /* what this microbatch's losses were divided by; 0: unknown */
  double norm;    /* of the step's sums, as the caller reported it; NaN: unknown */
  ad_dumped_param *params;
  ad_dump_mesh mesh;
};

/* Called by reducer.c when a microbatch has begun, before it takes a gradient, when all gradients of a microbatch have
 * come, and when the sums are made. In a step that is not dumped these do nothing. */
ad_status ad_dump_begin_microbatch(ad_reducer *reducer, int begins_step) AD_CHECKED;
ad_status ad_dump_addend(ad_reducer *reducer, size_t param, const ad_array *grad) AD_CHECKED;
ad_status ad_dump_end_microbatch(ad_reducer *reducer) AD_CHECKED;
ad_status ad_dump_sums(ad_reducer *reducer) AD_CHECKED;
/* Asks for the dump that the environment's ADDEND_DUMP (folder) and ADDEND_DUMP_STEP name, if any. */
ad_status ad_dump_from_environment(ad_reducer *reducer) AD_CHECKED;
void ad_dump_destroy(ad_reducer *reducer);
/* Destroys the dump, with a warning if the step that was to be dumped never came. */
void ad_dump_end(ad_reducer *reducer);

/* dump_file.c: this rank's number in the mesh of the parameters. */
int64_t ad_dump_rank(const ad_reducer *reducer);
/* AD_INVALID: a rank's part of a parameter is no box, or a file of this rank exists already. */
ad_status ad_dump_check_files(const ad_reducer *reducer) AD_CHECKED;
/* Writes this rank's file of a microbatch's addends, or of the step's sums; the latter replaces an earlier file of the
 * step's sums. AD_IO. */
ad_status ad_dump_write_addends(const ad_reducer *reducer) AD_CHECKED;
ad_status ad_dump_write_sums(const ad_reducer *reducer) AD_CHECKED;

#endif
