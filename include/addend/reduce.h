/* The gradient reducer: parameters with layout and contract in, summed gradients out. Works on arrays and knows of no
 * tape: another framework calls it with its own buffers. Which sums are needed is derived from the types (law 4); there
 * is no way to say it. */
#ifndef ADDEND_REDUCE_H
#define ADDEND_REDUCE_H
#include "addend/parameter.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* How far a microbatch's gradients go: they stay with what is pending; they are reduce-scattered into the partial sum
 * of the step, where storage is cut; or all is reduced. The last microbatch goes all the way (ZeRO-1: NONE until then).
 */
typedef enum ad_sync { AD_SYNC_NONE, AD_SYNC_SHARD, AD_SYNC_ALL } ad_sync;

/* What happens to a bucket, for traces: called on the rank's own thread. */
typedef enum ad_bucket_event { AD_BUCKET_POST, AD_BUCKET_WAIT, AD_BUCKET_DONE } ad_bucket_event;
/* To which of a bucket's reductions: a path has one or several, one after another. */
typedef struct ad_bucket_step {
  int bucket;
  ad_move move;
  ad_axes axes;
  size_t bytes; /* that this rank hands in */
} ad_bucket_step;
typedef struct ad_reducer_options {
  size_t size;         /* sizeof(ad_reducer_options) */
  size_t bucket_bytes; /* 0: 25 MiB */
  const char
      *prefix; /* put before the parameters' names wherever they are said: "encoder."; NULL: none; read by create */
  void (*trace)(void *context, ad_bucket_event event, const ad_bucket_step *step); /* NULL: nobody asks */
  void *trace_context;
  /* Buckets that are reduce-scattered share memory: each takes a slot from its first gradient of a microbatch until it
   * was sent and read, so that not every rank holds all gradients at once. Then every microbatch is sent: AD_SYNC_NONE
   * is refused. `window`: so many slots for buckets of one path and contract; 0: one that is filled beside one that is
   * summed, and as many more as are filled at once. */
  int reuses;
  size_t window;
  const char *files; /* put before the names of a dump's files: "stage0."; NULL: `prefix`; read by create */
} ad_reducer_options;

typedef struct ad_reducer ad_reducer;
/* Collective in nothing: every rank makes its own, with the same parameters in the same order (checked at the first
 * step by a hash: a difference is an error that names the parameter). Buckets are filled in reverse order of the
 * parameters. Borrows comm and the meshes. AD_TYPE if a gradient has no path to its storage. */
AD_API AD_CHECKED ad_status ad_reducer_create(ad_comm *comm, const ad_param_spec *params, size_t count,
                                              const ad_reducer_options *options, ad_reducer **out);
AD_API void ad_reducer_destroy(ad_reducer *reducer);

/* Describes, data NULL, a gradient of the parameter as this rank hands it in: the parameter's shape, the dual of its
 * layout, the contract's dtype (0 where that is raw and does not say one). */
AD_API ad_array ad_reducer_describe(const ad_reducer *reducer, size_t param);
/* A step: begin_microbatch, then for each parameter that has a gradient `add` (in any order, the same on all ranks
 * where it can be), end_microbatch; the last microbatch has AD_SYNC_ALL; then `finish`.
 *
 * AD_INVALID and AD_TYPE are refusals, which name the caller's line and change nothing. After any other error the sums
 * of the step are lost and the reducer can only be destroyed, as the message says; but after a set of parameters that
 * differed between ranks it can begin the next step. */
#define ad_reducer_begin_microbatch(...) ad_reducer_begin_microbatch_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_begin_microbatch_at(ad_reducer *reducer, ad_sync sync, const char *site);
/* Where the backward may write this gradient itself: `*out` describes the bucket's own memory, *adds says whether it
 * must be added to (1) or overwritten (0). out->data is NULL where that is not possible (dtype or scale change on the
 * way): then hand the gradient to `add`. May wait for what was sent from there. Where the reducer reuses memory a
 * target is good until its bucket was sent, and asked for in each microbatch anew. */
#define ad_reducer_target(...) ad_reducer_target_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_target_at(ad_reducer *reducer, size_t param, ad_array *out, int *adds,
                                                 const char *site);
/* This microbatch's gradient is there: its layout must be the dual of the parameter's. If grad->data is the target's,
 * nothing is copied. When a bucket's last gradient arrives in an AD_SYNC_ALL microbatch its reduction is posted, in an
 * order that is the same on all ranks. */
#define ad_reducer_add(...) ad_reducer_add_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_add_at(ad_reducer *reducer, size_t param, const ad_array *grad,
                                              const char *site);
/* Parameters without `add` since begin are absent: they contribute nothing here, and still get their last reduction. */
#define ad_reducer_end_microbatch(...) ad_reducer_end_microbatch_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_end_microbatch_at(ad_reducer *reducer, const char *site);
/* Waits until every gradient is reduced. A set of absent parameters that differs between ranks is an error naming
 * parameter and ranks. */
#define ad_reducer_finish(...) ad_reducer_finish_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_finish_at(ad_reducer *reducer, const char *site);
/* All of the above for one microbatch whose gradients lie in `grads` (NULL entries are absent): for hand-written
 * training loops. All gradients are looked at before the first is taken. */
#define ad_reducer_step(...) ad_reducer_step_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_step_at(ad_reducer *reducer, const ad_array *const *grads, const char *site);
/* The summed gradient in the storage layout and the accumulate dtype, unscaled; valid after finish until the next
 * begin_microbatch. Owned by the reducer. */
AD_API const ad_array *ad_reducer_gradient(const ad_reducer *reducer, size_t param);
AD_API int ad_reducer_is_absent(const ad_reducer *reducer, size_t param); /* on every microbatch of the step */
/* Global norm of all gradients, every distinct element once; collective over `group`. */
#define ad_reducer_norm(...) ad_reducer_norm_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_norm_at(ad_reducer *reducer, const ad_group *group, double *out,
                                               const char *site);

/* Of one step to come, each rank's addends as they are handed in and the sums as they come out, as files that `addend
 * diff` judges (docs/dumps.md): FOLDER/PREFIXrank00003.addend.m0.safetensors, one for each microbatch, and
 * PREFIXrank00003.sum.safetensors, with the options' `files` or `prefix`; ranks are counted in the parameters' mesh,
 * and where that is a pool that begins at rank 4 the prefix is followed by "at00004.". `after`: steps before it; 0: the
 * next one. `step`: what the files call it. The environment's ADDEND_DUMP=FOLDER, with ADDEND_DUMP_STEP=N, is this call
 * with both N right after create. The folder must be there. The step's sums are the same bits with it as without; its
 * calls give AD_IO where a file cannot be written. AD_INVALID, here, where such files are there already, where no one
 * mesh has the axes of all parameters' views, or one is cut zigzag; nothing was changed. Local. */
AD_API AD_CHECKED ad_status ad_reducer_dump(ad_reducer *reducer, const char *folder, uint64_t after, int64_t step);
/* For a dump alone: what this rank divided this microbatch's loss by. In every microbatch, before its end. */
AD_API void ad_reducer_divided_by(ad_reducer *reducer, double divisor);
/* For a dump alone: the global norm of this step's sums as they stand in the reducer, before clipping. Between `finish`
 * and the next microbatch: the dumped step's file of sums is written again, with the norm; one that is not finite is
 * left out. AD_IO. Local. */
AD_API AD_CHECKED ad_status ad_reducer_reported(ad_reducer *reducer, double norm);

AD_API size_t ad_reducer_bytes(const ad_reducer *reducer); /* memory of buckets and gradients on this rank */

/* Law 5: a step's counts, one for each microbatch, as a typed value. They are posted when the batch is read and summed
 * over all ranks while the forward pass runs; losses are divided by their total (ad_divide). One object serves all
 * steps; it is under way at most once. */
typedef struct ad_count ad_count;
/* `n` counts, an i64 vector [n]. `local` is the layout of what each rank counts: P on the axes on which the ranks'
 * counts are addends, R or I on those on which they are the same; other types are AD_TYPE. Local; borrows comm and the
 * layout's mesh. */
AD_API AD_CHECKED ad_status ad_count_create(ad_comm *comm, const ad_layout *local, size_t n, ad_count **out);
/* Waits for what is under way, so that no rank misses this one's count. NULL allowed. */
AD_API void ad_count_destroy(ad_count *count);
/* `local`: this rank's n counts, copied. Starts one all_reduce P->R of all n over the axes on which they are P; posts
 * nothing where they are P on none. AD_INVALID while an earlier one is under way. */
#define ad_count_post(...) ad_count_post_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_count_post_at(ad_count *count, const int64_t *local, const char *site);
/* Waits for what was posted last, if that was not done yet. *total, if wanted: the sum over microbatches and ranks.
 * AD_INVALID if nothing was posted. The count is const because waiting changes only what is known of it. */
AD_API AD_CHECKED ad_status ad_count_wait(const ad_count *count, int64_t *total);
/* Of microbatch `m` (0 .. n-1) over all ranks; -1 before the sum was waited for, or if there is no such microbatch. */
AD_API int64_t ad_count_of(const ad_count *count, size_t m);

#if defined(__cplusplus)
}
#endif
#endif
