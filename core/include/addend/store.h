/* The store keeps parameters: their storage shards, which the optimizer updates, and the full copies that computation
 * needs. The ranks of a node share one full copy, so in a gather each rank only writes the part that it owns.
 *
 * For users. Only one thread at a time may use a store and its comm. */
#ifndef ADDEND_STORE_H
#define ADDEND_STORE_H
#include "addend/reduce.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* What a group of parameters has in place of a store's options. */
typedef struct ad_store_group {
  size_t size;  /* sizeof(ad_store_group) */
  int releases; /* as in ad_store_options */
  int prefetch;
} ad_store_group;

typedef struct ad_store_options {
  size_t size; /* sizeof(ad_store_options) */
  /* dtype of the full copies: AD_F32 (default), AD_F64 or AD_BF16. With AD_BF16, parameters that are `wide` or have one
   * dimension still have f32 copies. */
  ad_dtype compute;
  int releases; /* 1: full copies exist only between acquire and release (ZeRO-3) */
  int prefetch; /* number of units to gather ahead while one is used; 0: none */
  int apart;    /* 1: every rank keeps its own full copies; necessary if ranks share no memory */
  /* Groups of parameters, as in ad_reducer_options: releases and prefetch above are those of group 0, and groups[g - 1]
   * has those of group g. Of a unit only the parameters that are released are gathered at its uses; the others' copies
   * are brought up to date by ad_store_refresh. */
  const ad_store_group *groups;
  size_t group_count;
  const size_t *group_of;
} ad_store_options;

typedef struct ad_store ad_store;
/* Creates a store. Collective over the parameters' meshes. Parameters of one `unit` are gathered together. If a
 * parameter's storage layout is its compute layout and its param dtype is its compute dtype, its value is also its full
 * copy. */
AD_API AD_CHECKED ad_status ad_store_create(ad_comm *comm, const ad_param_spec *params, size_t count,
                                            const ad_store_options *options, ad_store **out);
AD_API void ad_store_destroy(ad_store *store);
/* A parameter's value in the storage layout and the precision policy's param dtype, as it is saved in a checkpoint. */
AD_API ad_array *ad_store_value(ad_store *store, size_t param);
/* A parameter's master weights, which the optimizer updates, in the layout of updates (`update` in ad_param_spec); their
 * dtype is f32 or f64. If the value has one of these dtypes and the layout of updates, or the parameter is frozen, the
 * master is the same array as the value. */
AD_API ad_array *ad_store_master(ad_store *store, size_t param);
/* A parameter's full copy in compute layout and dtype. The array always exists; without `releases` its data is always
 * valid, with `releases` only while the parameter is acquired. */
AD_API const ad_array *ad_store_compute(const ad_store *store, size_t param);
/* AD_MASTERS_UPDATED: an optimizer wrote the masters, and no frozen parameter changed. */
typedef enum ad_written { AD_VALUES_WRITTEN, AD_MASTERS_WRITTEN, AD_MASTERS_UPDATED } ad_written;
/* Call this after values or masters were written (initialised, loaded, updated): it derives values from masters, or
 * masters from values, gathers the values of which ranks updated parts, and updates the full copies (with `releases`, at the next acquire). After AD_MASTERS_UPDATED,
 * units of frozen parameters alone are not gathered again. A value is its master, rounded once; a master derived from
 * its value equals the value. Initial values are drawn into the masters, so the masters of bf16 parameters begin with
 * unrounded values. Collective. */
AD_API AD_CHECKED ad_status ad_store_refresh(ad_store *store, ad_written written);
/* Begins a pass over the units, in ascending order for forward and in descending order for backward. The order
 * determines which units are gathered ahead. */
AD_API AD_CHECKED ad_status ad_store_begin_pass(ad_store *store, ad_pass pass);
/* Enclose each use of a parameter in acquire and release. Uses of one unit may nest. A unit's copy is only freed when a
 * parameter of the next unit is acquired or when the pass ends, so that all ranks gather in the same order. */
AD_API AD_CHECKED ad_status ad_store_acquire(ad_store *store, size_t param);
AD_API void ad_store_release(ad_store *store, size_t param);
AD_API AD_CHECKED ad_status ad_store_end_pass(ad_store *store);

#if defined(__cplusplus)
}
#endif
#endif
