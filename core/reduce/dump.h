/* Dumps: files with one step's addends as submitted and its sums as returned, for `addend diff` (audit/docs/dumps.md).
 * dump.c has the functions that reducer.c calls, and decides when a file is written; dump_file.c writes a file's
 * contents; dump_mesh.c finds the mesh that the files name. */
#ifndef REDUCE_DUMP_H
#define REDUCE_DUMP_H
#include <jansson.h>
#include "addend/safetensors.h"
#include "reduce/reducer.h"

/* The mesh of a dump: one mesh for all views (factorisations of the same ranks) that the parameters use. Each axis of
 * each view is one axis of this mesh, or several neighbouring ones together. */
enum { AD_DUMP_FACTORS = 2 * AD_AXIS_COUNT, AD_DUMP_NAME = 32 };
typedef struct ad_dump_factor {
  char name[AD_DUMP_NAME];
  int64_t size, stride;
} ad_dump_factor;
typedef struct ad_dump_mesh {
  ad_dump_factor factor[AD_DUMP_FACTORS]; /* slowest first */
  int count;
} ad_dump_mesh;
/* Finds the mesh of the reducer's parameters. If the views of two parameters have no common mesh: AD_INVALID, with the
 * names of the two parameters. */
ad_status ad_dump_mesh_find(const ad_reducer *reducer, ad_dump_mesh *out) AD_CHECKED;
/* Returns the layout's type on the axis that contains this factor; R if no axis of the layout's mesh contains it. */
ad_type ad_dump_type(const ad_layout *layout, const ad_dump_factor *factor);

typedef struct ad_dumped_param {
  void *values; /* a copy of this microbatch's gradient, before any sum; NULL: no gradient arrived */
  ad_dtype dtype;
  /* a copy of the bucket's values, made before a backward adds to them in place; NULL if no backward does */
  void *before;
} ad_dumped_param;

struct ad_dump {
  char *folder;
  uint64_t after; /* number of steps that the reducer finishes before the step that is dumped */
  int64_t step;   /* the step's number in the files */
  int in_flight;  /* 1: the step that is dumped has begun */
  int has_sums;   /* 1: the dumped step has ended, and its sums are written */
  int microbatch;
  double divisor; /* the divisor of this microbatch's losses; 0: unknown */
  double norm;    /* norm of the step's sums, as the caller gave it to ad_reducer_reported; NaN: none was given */
  ad_dumped_param *params;
  ad_dump_mesh mesh;
};

/* reducer.c calls these four functions: when a microbatch has begun; before it takes a gradient; when all gradients of
 * a microbatch have arrived; when the sums are complete. In a step that is not dumped they do nothing. */
ad_status ad_dump_begin_microbatch(ad_reducer *reducer, int begins_step) AD_CHECKED;
ad_status ad_dump_addend(ad_reducer *reducer, size_t param, const ad_array *grad) AD_CHECKED;
ad_status ad_dump_end_microbatch(ad_reducer *reducer) AD_CHECKED;
ad_status ad_dump_sums(ad_reducer *reducer) AD_CHECKED;
/* Starts the dump that the environment variables ADDEND_DUMP (folder) and ADDEND_DUMP_STEP ask for, if they are set. */
ad_status ad_dump_from_environment(ad_reducer *reducer) AD_CHECKED;
void ad_dump_destroy(ad_reducer *reducer);
/* Destroys the dump, with a warning if the reducer never reached the step that was to be dumped. */
void ad_dump_end(ad_reducer *reducer);

/* Returns this rank's number within the mesh of the parameters (in dump_file.c). */
int64_t ad_dump_rank(const ad_reducer *reducer);
/* Returns AD_INVALID if a parameter is sharded zigzag, so that a rank's part is not contiguous, or if a file of this
 * rank exists already. */
ad_status ad_dump_check_files(const ad_reducer *reducer) AD_CHECKED;
/* These functions write this rank's file of a microbatch's addends, or of the step's sums. A file of sums replaces an
 * earlier file of the same step. AD_IO. */
ad_status ad_dump_write_addends(const ad_reducer *reducer) AD_CHECKED;
ad_status ad_dump_write_sums(const ad_reducer *reducer) AD_CHECKED;

#endif
