/* Where parameters live: their storage shards, which the optimizer updates, and the whole copies that computing needs.
 * A node keeps one whole copy for all its ranks: gathering moves nothing but the owners' writes. */
#ifndef ADDEND_STORE_H
#define ADDEND_STORE_H
#include "addend/reduce.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_store_options {
  size_t size;      /* sizeof(ad_store_options) */
  ad_dtype compute; /* of the whole copies: AD_F32 (default), AD_F64 or AD_BF16; then those of parameters of one
                     * dimension, and that say `wide`, are f32 */
  int releases;     /* 1: whole copies exist only between acquire and release (ZeRO-3) */
  int prefetch;     /* how many units ahead are gathered while one is used; 0: none */
  int apart;        /* 1: every rank keeps whole copies of its own, as ranks must that share no memory */
} ad_store_options;

typedef struct ad_store ad_store;
/* Collective over the parameters' meshes. Parameters of one `unit` are gathered together. Parameters whose storage is
 * their compute layout and whose dtypes agree have one array for all purposes. */
AD_API AD_CHECKED ad_status ad_store_create(ad_comm *comm, const ad_param_spec *params, size_t count,
                                            const ad_store_options *options, ad_store **out);
AD_API void ad_store_destroy(ad_store *store);
/* Storage layout, the contract's param dtype: what a checkpoint keeps. */
AD_API ad_array *ad_store_value(ad_store *store, size_t param);
/* Storage layout, at least f32: what the optimizer updates; the value itself where its dtype is wide enough. */
AD_API ad_array *ad_store_master(ad_store *store, size_t param);
/* Compute layout and dtype. The array stays; its data is valid while the parameter is acquired, always without
 * `releases`. */
AD_API const ad_array *ad_store_compute(const ad_store *store, size_t param);
typedef enum ad_written { AD_VALUES_WRITTEN, AD_MASTERS_WRITTEN } ad_written;
/* After the values were written, or the masters (initialised, loaded, updated): the other follows,
 * and the whole copies are brought up to date (with `releases`: at the next acquire). A value is its master, rounded
 * once; a master that follows its value is equal to it. Initial values are drawn into the masters, so those of bf16
 * parameters start unrounded. Collective. */
AD_API AD_CHECKED ad_status ad_store_refresh(ad_store *store, ad_written written);
/* A pass over the units begins: forward goes up, backward down; says what to gather ahead. */
AD_API AD_CHECKED ad_status ad_store_begin_pass(ad_store *store, ad_pass pass);
/* Around each use of a parameter. Uses of one unit may nest; the copy is released when a parameter of the unit after it
 * is acquired or the pass ends, so that all ranks gather in the same order. */
AD_API AD_CHECKED ad_status ad_store_acquire(ad_store *store, size_t param);
AD_API void ad_store_release(ad_store *store, size_t param);
AD_API AD_CHECKED ad_status ad_store_end_pass(ad_store *store);
/* Bytes on this rank: storage (values, masters), and this rank's share of the node's whole copies. */
AD_API size_t ad_store_bytes(const ad_store *store);
AD_API size_t ad_store_gathered_bytes(const ad_store *store);

#if defined(__cplusplus)
}
#endif
#endif
