/* The gradient reducer: it takes gradients of parameters that have a layout and a precision policy, and returns the
 * summed gradients. It works on arrays and needs no tape, so another framework can call it with its own buffers. The
 * sums that are needed follow from the types (law 4); a caller cannot choose them.
 *
 * For users. Only one thread at a time may use a reducer or counts, and their comm. */
#ifndef ADDEND_REDUCE_H
#define ADDEND_REDUCE_H
#include "addend/parameter.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* How far a microbatch's gradients are reduced:
 *   AD_SYNC_NONE    not at all: they accumulate on this rank
 *   AD_SYNC_SHARD   if storage is sharded, they are reduce-scattered and added to the step's partial sum
 *   AD_SYNC_ALL     completely
 * The last microbatch must have AD_SYNC_ALL (with ZeRO-1, all earlier ones AD_SYNC_NONE). */
typedef enum ad_sync { AD_SYNC_NONE, AD_SYNC_SHARD, AD_SYNC_ALL } ad_sync;

/* What happens to a bucket, for traces. Events are reported on the thread that calls the reducer. */
typedef enum ad_bucket_event { AD_BUCKET_POST, AD_BUCKET_WAIT, AD_BUCKET_DONE } ad_bucket_event;
/* The reduction that an event is about. The path of a bucket's gradients has one or several reductions, one after
 * another. */
typedef struct ad_bucket_step {
  int bucket;
  ad_move move;
  ad_axes axes;
  size_t bytes; /* bytes that this rank contributes */
} ad_bucket_step;
/* Leaves make a step's sums independent of the number of ranks. The global batch is divided into `leaves` leaves. The
 * gradient of each leaf is computed by itself, and gradients are summed in the order of one tree over the leaves
 * (core/docs/laws.md, law 10), in the accumulate dtype. If a leaf's gradient has the same bits wherever it is computed,
 * the sums have the same bits on every number of ranks.
 *
 * A step has `rounds` rounds in place of microbatches. In each round, ranks with the same positions on dp_replicate and
 * dp_shard work on the same leaf, or on no leaf; ad_reducer_leaf returns which leaf.
 *
 * Any number of ranks can sum any number of leaves: some ranks, and some rounds, may have no leaf. If some parameters'
 * storage is sharded over dp_shard and that of others is not, AD_SYNC_SHARD sums the gradients of both over dp_shard.
 *
 * ad_reducer_create returns AD_INVALID or AD_TYPE unless
 * - all parameters are on one mesh, and R on dp_replicate and dp_shard;
 * - each precision policy has the same dtype as `reduce` and `accumulate`;
 * - storage is such that gradients are reduce-scattered over no axes but dp_replicate and dp_shard;
 * - dp_replicate is before dp_shard in the mesh, because the members of a collective, in their order, must have leaves
 *   that follow one another. */
typedef struct ad_leaf_options {
  int64_t leaves; /* at least 1 */
  /* at least `leaves` divided by the number of data-parallel positions (dp_replicate * dp_shard), rounded up */
  int64_t rounds;
  /* [rounds]: how far each round's gradients are reduced; AD_SYNC_ALL in the last round. These values also decide which
   * rank computes which leaf, because the leaves that are sent together must follow one another. */
  const ad_sync *sync;
} ad_leaf_options;

/* What the gradients of a group of parameters have in place of a reducer's options. Groups with the same settings share
 * buckets. */
typedef struct ad_reducer_group {
  size_t size;         /* sizeof(ad_reducer_group) */
  size_t bucket_bytes; /* as in ad_reducer_options; 0: 25 MiB */
  int reuses;          /* as in ad_reducer_options */
  size_t window;
  /* [sync_count]: how far each microbatch of a step reduces the gradients of the group, in place of the `sync` that the
   * caller gives for the others. A step then has sync_count microbatches; the last is AD_SYNC_ALL here and for the
   * others. NULL: as the caller says. Must be NULL in a reducer with leaves, whose `sync` decides which rank computes
   * which leaf. Copied. */
  const ad_sync *sync;
  size_t sync_count;
} ad_reducer_group;

typedef struct ad_reducer_options {
  size_t size;         /* sizeof(ad_reducer_options) */
  size_t bucket_bytes; /* size of a bucket; 0: 25 MiB */
  /* Prefix of the parameters' names in messages and files, such as "encoder."; NULL: none. Read by create alone. */
  const char *prefix;
  void (*trace)(void *context, ad_bucket_event event, const ad_bucket_step *step); /* NULL: no trace */
  void *trace_context;
  /* 1: buckets that are reduce-scattered share memory. Each bucket occupies a slot from its first gradient of a
   * microbatch until its sum was sent and read, so that a rank does not hold all gradients at the same time. Every
   * microbatch must then be sent: AD_SYNC_NONE is refused. `window` is the number of slots for the buckets that have
   * one path and one precision policy; 0: one slot to fill while another is summed, and one more for each further
   * bucket that is filled at the same time. */
  int reuses;
  size_t window;
  /* prefix of the names of a dump's files, such as "stage0."; NULL: `prefix`; read by create alone */
  const char *files;
  /* NULL: no leaves. Otherwise a step consists of rounds, which ad_reducer_begin_leaf begins. Copied. */
  const ad_leaf_options *leaves;
  /* Groups of parameters. The options above are those of group 0, and groups[g - 1] has the settings of group g. Copied.
   * group_of: for each parameter the number of its group; NULL: all parameters are in group 0. Read by create alone. */
  const ad_reducer_group *groups;
  size_t group_count; /* number of entries of `groups` */
  const size_t *group_of;
} ad_reducer_options;

typedef struct ad_reducer ad_reducer;
/* Creates a reducer. Local: every rank creates its own, with the same parameters in the same order. (In the first step
 * the ranks compare a hash of their parameters; if they differ, the error names the parameter.) Buckets are filled in
 * reverse order of the parameters; frozen ones are in none, and `add` and `target` refuse them. Borrows comm and the
 * meshes. AD_TYPE if there is no path from a gradient's layout to its storage. */
AD_API AD_CHECKED ad_status ad_reducer_create(ad_comm *comm, const ad_param_spec *params, size_t count,
                                              const ad_reducer_options *options, ad_reducer **out);
AD_API void ad_reducer_destroy(ad_reducer *reducer);

/* Describes, with data NULL, a gradient of the parameter as this rank must submit it: the parameter's shape, the dual
 * of its layout, and the policy's dtype (0 if the policy is raw and names no dtype). */
AD_API ad_array ad_reducer_describe(const ad_reducer *reducer, size_t param);
/* A step consists of its microbatches and `finish`. A microbatch consists of begin_microbatch, `add` for each parameter
 * that has a gradient (in any order, preferably the same on all ranks), and end_microbatch; the last microbatch has
 * AD_SYNC_ALL.
 *
 * A call that returns AD_INVALID or AD_TYPE names the caller's line and changes nothing. After any other error the
 * step's sums are lost and, as the message says, the reducer can only be destroyed. One exception: after an error about
 * a set of parameters that differed between ranks, the reducer can begin the next step. */
#define ad_reducer_begin_microbatch(...) ad_reducer_begin_microbatch_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_begin_microbatch_at(ad_reducer *reducer, ad_sync sync, const char *site);
/* Returns the leaf (0 .. leaves-1) whose gradients this rank submits in round `round` (0 .. rounds-1) of each step;
 * -1 if it has none in this round, if there is no such round, and without leaves. */
AD_API int64_t ad_reducer_leaf(const ad_reducer *reducer, int64_t round);
/* Begins the next round of the step of a reducer with leaves, in place of begin_microbatch; end_microbatch ends the
 * round. In between, `add` is called for each parameter that has a gradient in this leaf; leaves may have gradients of
 * different parameters. AD_INVALID, with nothing changed, unless `sync` is that of the round in ad_leaf_options and `leaf` is
 * what ad_reducer_leaf returns for the round. If `leaf` is -1, gradients that this rank submits in the round are
 * checked and then ignored. */
#define ad_reducer_begin_leaf(...) ad_reducer_begin_leaf_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_begin_leaf_at(ad_reducer *reducer, ad_sync sync, int64_t leaf, const char *site);
/* *out: memory of the bucket to which the backward may write this gradient directly; *adds: 1 if the gradient must be
 * added to the memory's contents, 0 if it must overwrite them. out->data is NULL if direct writing is impossible,
 * because the gradient's dtype or scale must still change: then pass the gradient to `add`. May wait until earlier
 * contents were sent. If the reducer reuses memory, *out is valid until its bucket was sent, and this function must be
 * called again in each microbatch. With leaves it must be called again in each round, and *adds is always 0. */
#define ad_reducer_target(...) ad_reducer_target_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_target_at(ad_reducer *reducer, size_t param, ad_array *out, int *adds,
                                                 const char *site);
/* Submits this microbatch's gradient of a parameter; its layout must be the dual of the parameter's. If grad->data is
 * the memory that ad_reducer_target gave, nothing is copied. When the last gradient of a bucket arrives in an
 * AD_SYNC_ALL microbatch, the bucket's reduction is posted. All ranks post their buckets in the same order. */
#define ad_reducer_add(...) ad_reducer_add_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_add_at(ad_reducer *reducer, size_t param, const ad_array *grad,
                                              const char *site);
/* Ends the microbatch. A parameter for which `add` was not called in this microbatch is absent: it contributes nothing
 * to the sum, which is reduced nevertheless in the last microbatch. */
#define ad_reducer_end_microbatch(...) ad_reducer_end_microbatch_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_end_microbatch_at(ad_reducer *reducer, const char *site);
/* Waits until every gradient is reduced. Fails, with parameter and ranks in the message, if the set of absent
 * parameters differs between ranks. */
#define ad_reducer_finish(...) ad_reducer_finish_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_finish_at(ad_reducer *reducer, const char *site);
/* Runs a whole step of one microbatch, for hand-written training loops. `grads` has the gradient of each parameter,
 * NULL if it is absent. All gradients are checked before the first one is submitted. */
#define ad_reducer_step(...) ad_reducer_step_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_step_at(ad_reducer *reducer, const ad_array *const *grads, const char *site);
/* The summed gradient, in the storage layout and the accumulate dtype, without scale; NULL if the parameter is frozen.
 * Valid after finish until the next begin_microbatch. Owned by the reducer. */
AD_API const ad_array *ad_reducer_gradient(const ad_reducer *reducer, size_t param);
/* Returns 1 if no gradient of the parameter came in any microbatch of the step; with leaves, in any leaf of any rank. */
AD_API int ad_reducer_is_absent(const ad_reducer *reducer, size_t param);
/* *out: the global norm of all gradients, with every distinct element counted once. With leaves its bits do not depend
 * on the number of data-parallel ranks: the squares of each row are summed in f64, and the sums of rows are added
 * without rounding. Collective over `group`. */
#define ad_reducer_norm(...) ad_reducer_norm_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_reducer_norm_at(ad_reducer *reducer, const ad_group *group, double *out,
                                               const char *site);

/* Dumps one future step: each rank's addends as submitted, and the sums as returned, as files that `addend diff` checks
 * (audit/docs/dumps.md):
 *   FOLDER/PREFIXrank00003.addend.m0.safetensors   one for each microbatch
 *   FOLDER/PREFIXrank00003.sum.safetensors
 * PREFIX is the options' `files` or `prefix`. Ranks are numbered within the parameters' mesh; if the mesh is a pool
 * that begins at rank 4, PREFIX is followed by "at00004.". `after` is the number of steps before the dumped step, 0 for
 * the next step; `step` is the step's number in the files. The environment variables ADDEND_DUMP=FOLDER and
 * ADDEND_DUMP_STEP=N have the effect of this call, made right after create with `after` and `step` N. The folder must
 * exist. The step's sums have the same bits with and without a dump. The step's calls return AD_IO if a file cannot be
 * written. This call returns AD_INVALID, with nothing changed, if such files exist already, if no single mesh has the
 * axes of all parameters' views, or if a parameter is sharded zigzag. Local. */
AD_API AD_CHECKED ad_status ad_reducer_dump(ad_reducer *reducer, const char *folder, uint64_t after, int64_t step);
/* Only for a dump: records the number by which this rank divided this microbatch's loss; 0 if there was no single such
 * number. Call it in every microbatch, before end_microbatch. AD_INVALID, with nothing changed, if the divisor is not
 * finite or below 0. */
AD_API AD_CHECKED ad_status ad_reducer_divided_by(ad_reducer *reducer, double divisor);
/* Only for a dump: records the global norm of this step's sums as they are in the reducer, before clipping. Call it
 * between `finish` and the next microbatch: the dumped step's file of sums is then written again, with the norm. A norm
 * that is not finite is left out. AD_IO. Local. */
AD_API AD_CHECKED ad_status ad_reducer_reported(ad_reducer *reducer, double norm);

AD_API size_t ad_reducer_bytes(const ad_reducer *reducer); /* memory of buckets and gradients on this rank */

/* The counts of a step (for example of tokens), one for each microbatch, as a typed value (law 5). They are posted when
 * the batch is read and summed over all ranks during the forward pass; losses are divided by their total (ad_divide).
 * One object serves all steps, one step at a time. */
typedef struct ad_count ad_count;
/* Creates `n` counts, an i64 vector [n]. `local` is the layout of each rank's own counts: P on the axes on which the
 * ranks' counts are addends, R or I on the axes on which they are the same; other types are AD_TYPE. Local. Borrows
 * comm and the layout's mesh. */
AD_API AD_CHECKED ad_status ad_count_create(ad_comm *comm, const ad_layout *local, size_t n, ad_count **out);
/* Destroys the counts; first waits for a sum in flight, so that no rank misses this rank's counts. NULL allowed. */
AD_API void ad_count_destroy(ad_count *count);
/* Starts one all_reduce P->R of all n counts over the axes on which they are P; posts nothing if there is no such axis.
 * `local` has this rank's n counts, which are copied. AD_INVALID while an earlier sum is in flight. */
#define ad_count_post(...) ad_count_post_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_count_post_at(ad_count *count, const int64_t *local, const char *site);
/* Waits for the sum that was posted last, if it is still in flight. *total (unless `total` is NULL): the sum over
 * microbatches and ranks. AD_INVALID if nothing was posted. `count` is const because waiting does not change the
 * counts. */
AD_API AD_CHECKED ad_status ad_count_wait(const ad_count *count, int64_t *total);
/* The count of microbatch `m` (0 .. n-1) over all ranks; -1 before ad_count_wait, or if there is no such microbatch. */
AD_API int64_t ad_count_of(const ad_count *count, size_t m);

#if defined(__cplusplus)
}
#endif
#endif
