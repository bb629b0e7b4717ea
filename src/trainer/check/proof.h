/* One proof: what the ranks and the process that judges share. Lives in memory that both map; holds no pointers. */
#ifndef CHECK_PROOF_H
#define CHECK_PROOF_H
#include "addend/check.h"
#include "check/calls.h"
#include "diff/cause.h"

/* What the addends of a step say of a gradient that does not hold in it. */
typedef enum ad_accounted {
  AD_NOT_ACCOUNTED, /* it holds, or nobody asked */
  AD_SUM_IS_WRONG,
  AD_ADDENDS_ARE_WRONG,   /* it is the sum of the addends that ranks handed in */
  AD_ADDENDS_ARE_WEIGHED, /* and they are wrong by a factor of each microbatch alone, as its one cause says */
  AD_NO_ACCOUNT           /* one of both */
} ad_accounted;

/* One parameter's numbers, of the step where they were worst. The error is that of the worst element in f64, and the
 * norm of the differences over that of the reference in dtypes that round. */
typedef struct ad_proof_param {
  char name[2 * AD_PARAM_NAME_SIZE], mesh[128], layout[160], storage[160], reduced_over[80];
  int64_t step;
  double ratio;       /* <dist,ref>/<ref,ref>; NaN: not defined */
  double max_rel_err; /* NaN or infinite: fails */
  double bound;
  double one_process;   /* error of one process in the recipe's own dtypes; NaN: nothing rounds but f64 */
  double wires;         /* what the reference has from roundings where values cross; the same */
  double cosine;        /* of the angle to the reference; the same */
  double sum_share;     /* distance to the sum of the ranks' own addends, of what reducing them may round; the same */
  double process_share; /* distance of that sum to one process's gradient, of what it may be; the same */
  int replicas_equal;
  int proportional; /* the gradient is ratio * reference, up to rounding */
  ad_accounted accounted;
  int update_equal; /* fed the distributed gradient, one process's optimizer gave the same bits */
  ad_causes causes;
} ad_proof_param;

/* What became of steps whose gradient overflowed: they are skipped, and nothing of them is judged. */
typedef struct ad_overflow {
  int64_t taken, skipped;
  int scale, taken_at;                /* exponents: of the first that was skipped; of the last that was taken */
  char param[2 * AD_PARAM_NAME_SIZE]; /* whose gradient was not finite in the first that was skipped, or what crosses */
} ad_overflow;

typedef struct ad_proof {
  int complete; /* every number below is there */
  double loss_dist, loss_ref, loss_err, loss_bound;
  double norm_dist, norm_ref, norm_err, norm_bound;
  int initial_equal; /* the first step started from the values that one process draws */
  int updates_equal; /* the reference's optimizer, fed the distributed gradient, gave the same values and moments, bit
                        for bit */
  int judges_states; /* the program has states, and nothing rounds but f64 */
  double state_err;  /* worst of a state after a step, and of the numbers that the program measured */
  double free_difference; /* worst relative distance of a parameter to a reference that never restarts; reported, not
                             judged */
  double margin;          /* smallest of a choice in all steps; infinite: there was none; below 0: roundings chose */
  double process_share;   /* distance of all gradients together to one process's, of what it may be */
  double turned, turned_bound; /* by how much a choice was worse than one that was left, at most */
  double difference, derivative, directional_err;
  ad_overflow overflow;
  char calls[AD_CALLS_TEXT]; /* the first collective of a rank that was not as planned; "": all were */
  int64_t call_count;        /* collectives of the first rank in a step, and their bytes */
  uint64_t call_bytes;
  int64_t counted; /* tokens, in all steps; 0: every gradient is zero, and that they agree says nothing */
  size_t param_count;
  ad_proof_param params[];
} ad_proof;

/* A proof of `recipe`. */
typedef struct ad_proof_job {
  const ad_recipe *recipe;
  const ad_check_options *options;
  int64_t steps;
  ad_proof *proof;
  int quiet; /* 1: another proof of the same steps has warned */
  int dumps; /* 1: into options->dump */
} ad_proof_job;

ad_status ad_proof_create(const ad_recipe *recipe, ad_proof **out) AD_CHECKED; /* shared memory, zeroed */
void ad_proof_clear(ad_proof *proof); /* before it is proven: every number is 0 */
void ad_proof_destroy(ad_proof *proof);
/* Starts the ranks, lets each prove its share, waits. The status and *result are those of ad_launch. */
ad_status ad_proof_run(const ad_proof_job *job, ad_launch_result *result) AD_CHECKED;
/* The axes larger than 1 over which the gradient of a parameter of this compute layout is a sum. */
ad_axes ad_proof_reduced_axes(const ad_layout *layout);
int ad_proof_passes(const ad_proof *proof, int directional); /* every judged number holds */
int ad_proof_proves(const ad_proof *proof, int directional); /* that, of a step in which something was counted */
/* AD_MEMORY before any rank starts where the largest of these proofs, which follow each other, will not have the memory
 * that it needs: see ad_plan_fits. `root`: "" but in tests. */
ad_status ad_proof_fits(const ad_proof_job *jobs, size_t count, const char *root) AD_CHECKED;
/* In which ranks compute, as ad_run_options has it. */
ad_dtype ad_proof_dtype(const ad_check_options *options);
/* Whether everything is f64 under these options: nothing rounds but that. */
int ad_proof_is_wide(const ad_recipe *recipe, const ad_check_options *options);
#define AD_WIDE_BOUND 1e-12 /* the promise of the proof in f64 */
/* A central difference in f64 keeps about eps^(2/3) = 4e-11 of the loss; the derivative along a random direction is
 * smaller than the loss by up to three digits. */
#define AD_DIRECTIONAL_BOUND 1e-7
/* States follow from sums of few numbers. */
#define AD_STATE_BOUND 1e-12

/* What a rank runs: prove.c. */
ad_status ad_prove(ad_comm *comm, const ad_proof_job *job) AD_CHECKED;

/* Numbers of one parameter: compare.c. `numel` elements of f64 or f32; `largest` is the model's largest |ref|. */
void ad_compare(const void *dist, const void *ref, ad_dtype dtype, size_t numel, double largest, double *ratio,
                double *max_rel_err);
double ad_largest(const void *values, ad_dtype dtype, size_t numel);
double ad_norm_of(const double *values, size_t numel);
double ad_cosine(const double *a, const double *b, size_t numel); /* of the angle between them; NaN: one is zero */
/* |a-b| / max(|a|,|b|); 0 if both are 0, NaN if one is not finite. */
double ad_relative_difference(double a, double b);

double ad_param_share(
    const ad_proof_param *param); /* the largest of its errors, as a part of its bound; NaN: no number */
/* The causes that fit a parameter's numbers: diagnose.c. `differs` is the set of axes along which replicas differ;
 * `odd_rank` the one rank whose copy differs from all others, or -1. `proportional` says that dist is ratio * ref
 * within rounding. */
void ad_diagnose(const ad_mesh *mesh, ad_axes reduced, const ad_proof_param *param, int proportional, ad_axes differs,
                 int64_t odd_rank, ad_causes *out);
/* The same of copies that differ, are wrong, and sum up to the reference over those axes. */
void ad_diagnose_parts(ad_axes differs, ad_causes *causes);
/* Adds the same of a factor that also makes good for another module's average, where the gradient was averaged over its
 * own ranks. `mesh`: of the parameter, which is that module's. */
void ad_diagnose_averages(const ad_program *program, size_t module, const ad_mesh *mesh, ad_axes reduced,
                          ad_causes *causes);
/* Of shards that were summed with each other. */
void ad_diagnose_shards(ad_axes axes, ad_causes *causes);
/* Of copies that differ after the update alone. */
void ad_diagnose_updates(ad_axes differs, int64_t odd_rank, ad_causes *causes);
void ad_diagnose_update(ad_causes *causes); /* of a gradient that is right and was used wrongly */

#endif
