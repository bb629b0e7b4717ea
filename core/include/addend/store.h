/* The store keeps parameters: their storage shards, which the optimizer updates, and the full copies that computation
 * needs. The ranks of a node share one full copy: gathering it moves no bytes except those that each owner writes. */
#ifndef ADDEND_STORE_H
#define ADDEND_STORE_H
#include "addend/reduce.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_store_options {
  size_t size; /* sizeof(ad_store_options) */
  /* dtype of the full copies: AD_F32 (default), AD_F64 or AD_BF16. With AD_BF16, the copies of parameters that have one
   * dimension or are `wide` are f32. */
  ad_dtype compute;
  int releases; /* 1: full copies exist only between acquire and release (ZeRO-3) */
  int prefetch; /* number of units to gather ahead while one is used; 0: none */
  int apart;    /* 1: every rank keeps its own full copies, as is necessary for ranks that share no memory */
} ad_store_options;

typedef struct ad_store ad_store;
/* Creates a store. Collective over the parameters' meshes. Parameters of one `unit` are gathered together. A parameter
 * whose storage layout is its compute layout and whose dtypes agree has a single array for all purposes. */
AD_API AD_CHECKED ad_status ad_store_create(ad_comm *comm, const ad_param_spec *params, size_t count,
                                            const ad_store_options *options, ad_store **out);
AD_API void ad_store_destroy(ad_store *store);
/* A parameter's value in storage layout and the precision policy's param dtype, as a checkpoint keeps it. */
AD_API ad_array *ad_store_value(ad_store *store, size_t param);
/* A parameter's master weights in storage layout, at least f32, which the optimizer updates; the same array as the
 * value if the value's dtype is wide enough. */
AD_API ad_array *ad_store_master(ad_store *store, size_t param);
/* A parameter's full copy in compute layout and dtype. The array is always there; its data is valid while the parameter
 * is acquired, or always without `releases`. */
AD_API const ad_array *ad_store_compute(const ad_store *store, size_t param);
typedef enum ad_written { AD_VALUES_WRITTEN, AD_MASTERS_WRITTEN } ad_written;
/* Call it after values or masters were written (initialised, loaded, updated): it derives the other one of the two and
 * brings the full copies up to date (with `releases`: at the next acquire). A value is its master, rounded once; a
 * master derived from its value equals it. Initial values are drawn into the masters, so the masters of bf16 parameters
 * start unrounded. Collective. */
AD_API AD_CHECKED ad_status ad_store_refresh(ad_store *store, ad_written written);
/* Begins a pass over the units, upward for forward, downward for backward, which determines what to gather ahead. */
AD_API AD_CHECKED ad_status ad_store_begin_pass(ad_store *store, ad_pass pass);
/* Acquire and release enclose each use of a parameter. Uses of one unit may nest. A unit's copy is only released when a
 * parameter of the next unit is acquired or the pass ends, so that all ranks gather in the same order. */
AD_API AD_CHECKED ad_status ad_store_acquire(ad_store *store, size_t param);
AD_API void ad_store_release(ad_store *store, size_t param);
AD_API AD_CHECKED ad_status ad_store_end_pass(ad_store *store);

#if defined(__cplusplus)
}
#endif
#endif
