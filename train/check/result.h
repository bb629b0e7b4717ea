/* The numbers of one check, in memory that the ranks and the process that started them share, so without pointers. */
#ifndef CHECK_RESULT_H
#define CHECK_RESULT_H
#include "addend/check.h"
#include "check/calls.h"
#include "say/cause.h"
#include "program/program.h"

/* What the count of a step's addends shows about a gradient that is wrong in that step. */
typedef enum ad_accounted {
  AD_NOT_ACCOUNTED,     /* the gradient is right, or its addends were not counted */
  AD_SUM_IS_WRONG,      /* the gradient is not the sum of the addends that ranks submitted, so the sum is wrong */
  AD_ADDENDS_ARE_WRONG, /* the gradient is the sum of the addends that ranks submitted, and the addends are wrong */
  /* the gradient is the sum of the submitted addends, and each microbatch's addends are wrong by one factor */
  AD_ADDENDS_ARE_WEIGHED,
  AD_NO_ACCOUNT /* the sum or the addends are wrong, but the count of addends does not show which */
} ad_accounted;

enum { AD_REPORTS_TEXT = 128 };

/* One parameter's numbers, from the step in which they were worst. In f64 the error is that of the worst element; in
 * dtypes that round it is the norm of the differences divided by the norm of the reference. */
typedef struct ad_check_param {
  char name[AD_PROGRAM_NAME_SIZE], mesh[128], layout[160], storage[160], reduced_over[80];
  int64_t step;
  double ratio; /* <dist,ref>/<ref,ref>, with dist the distributed gradient and ref the reference; NaN: not defined */
  double max_rel_err; /* error of the gradient; NaN or infinite: the check fails */
  double bound;
  double one_process; /* error of one process in the recipe's own dtypes; NaN in a check in f64 */
  /* error of the reference that comes from rounding values transferred between modules; NaN in a check in f64 */
  double comm_rounding;
  double cosine; /* cosine of the angle between gradient and reference; NaN in a check in f64 */
  /* distance to the sum of the ranks' own addends, divided by what reducing may round; NaN in a check in f64 */
  double sum_share;
  /* distance of the sum of the ranks' own addends to one process's gradient, divided by its bound; NaN in a check in
   * f64 */
  double process_share;
  /* 1: the reference's gradient is not zero in some step; 0: it always is, so agreement shows nothing about this
   * parameter */
  int reached;
  int replicas_equal;
  int proportional; /* 1: the gradient is ratio * reference, up to rounding */
  ad_accounted accounted;
  /* how often the gradient's squares are in the norm; NaN: the norm is right, or no parameter is counted wrongly */
  double counted;
  /* 1: one process's optimizer, given the distributed gradient, computed the same bits; or the parameter is frozen, and no
   * step changed a bit of it */
  int update_equal;
  size_t group; /* number of its group (recipe/groups.h) */
  int frozen;   /* 1: it has no gradient, so that no number above is judged but `replicas_equal` */
  ad_causes causes;
} ad_check_param;

/* Steps that were skipped because a gradient overflowed; no number of such a step is judged. */
typedef struct ad_overflow {
  int64_t taken, skipped;
  /* scale: exponent of the loss scale in the first skipped step; taken_at: in the last step that was taken */
  int scale, taken_at;
  char param[AD_PROGRAM_NAME_SIZE]; /* the parameter or transferred value that overflowed in the first skipped step */
} ad_overflow;

typedef struct ad_check_result {
  int complete; /* 1: all numbers below were written */
  double loss_dist, loss_ref, loss_err, loss_bound;
  double norm_dist, norm_ref, norm_err, norm_bound;
  /* the parameter that changes the norm most, of those that the norm counts more or less than once; "": all are counted
   * once */
  char norm_param[AD_PROGRAM_NAME_SIZE];
  ad_causes norm_causes; /* why norm_param is not counted once */
  int initial_equal;     /* 1: the first step started from the values that one process draws */
  /* 1: the reference's optimizer, given the distributed gradient, computed the same values and states, bit for bit */
  int updates_equal;
  int judges_states; /* 1: the program has states, and the check is in f64 */
  double state_err;  /* worst error of a state after a step, and of the numbers that the program measured */
  /* worst relative distance of a parameter to a reference that never restarts from the distributed values; reported,
   * not judged */
  double free_difference;
  /* smallest margin of a choice in all steps; infinite: there was no choice; below 0: rounding changed a choice */
  double margin;
  double process_share; /* distance of all gradients together to those of one process, divided by its bound */
  /* choice_error: the most by which a choice was worse than one that was not chosen; choice_bound: its bound */
  double choice_error, choice_bound;
  double difference, derivative, directional_err;
  /* the first line of the program with a constant that changes with the parameters; "": none was seen */
  char stopped[128];
  ad_overflow overflow;
  char calls[AD_CALLS_TEXT];     /* the first collective that was not as planned, in words; "": all were as planned */
  char reports[AD_REPORTS_TEXT]; /* the first loss or norm that is not the same on all ranks, in words; "": none */
  int64_t call_count;            /* collectives that the first rank posts in a step, and their bytes */
  uint64_t call_bytes;
  int64_t counted; /* tokens that counted in all steps; 0: every gradient is zero, so agreement shows nothing */
  size_t param_count;
  ad_check_param params[];
} ad_check_result;

/* A check to make, and the memory for its numbers. */
typedef struct ad_check_job {
  const ad_recipe *recipe;
  const ad_check_options *options;
  int64_t steps;
  ad_check_result *result;
  int quiet; /* 1: no warnings, because another check of the same steps has given them */
  int dumps; /* 1: dumps the steps to options->dump */
  /* 1: this is the directional check that accompanies a check against one process (check/directional.h) */
  int is_slope;
} ad_check_job;

/* makes the result in shared memory, zeroed */
ad_status ad_check_result_create(const ad_recipe *recipe, ad_check_result **out) AD_CHECKED;
void ad_check_result_clear(ad_check_result *result); /* sets every number to 0, before the check begins */
void ad_check_result_destroy(ad_check_result *result);
/* In check_ranks.c: starts the ranks, each of which checks its share, and waits for them. The status and *launched are
 * those of ad_launch. */
ad_status ad_check_run(const ad_check_job *job, ad_launch_result *launched) AD_CHECKED;
/* Returns the axes of more than one rank over which the gradient of a parameter with this compute layout is a sum. */
ad_axes ad_check_reduced_axes(const ad_layout *layout);
/* returns 1 if all judged numbers are within their bounds */
int ad_check_result_passes(const ad_check_result *result, int directional);
/* Returns how many parameters a gradient reached or, in a directional check, 1 if the loss has a slope, else 0. */
size_t ad_check_result_reached(const ad_check_result *result, int directional);
/* Returns 1 if ad_check_result_passes returns 1, some token counted, and some gradient is not zero. */
int ad_check_result_matches(const ad_check_result *result, int directional);
/* Fails with AD_MEMORY, before any rank starts, if one of these checks, which run one after another, needs more memory
 * than there is (ad_plan_fits). `root` is "" except in tests. */
ad_status ad_check_fits(const ad_check_job *jobs, size_t count, const char *root) AD_CHECKED;
/* Returns the dtype in which ranks must compute, as in ad_run_options; 0: the recipe's own dtypes. */
ad_dtype ad_check_dtype(const ad_check_options *options);
/* Returns 1 if everything is computed in f64 under these options, so that the check's bounds are those of f64. */
int ad_check_is_wide(const ad_recipe *recipe, const ad_check_options *options);
#define AD_WIDE_BOUND 1e-12 /* the bound of the check in f64 */
/* A central difference in f64 keeps about eps^(2/3) = 4e-11 of the loss; the derivative along a random direction is
 * smaller than the loss by up to three digits. */
#define AD_DIRECTIONAL_BOUND 1e-7
/* The bound of states, which are sums of few numbers. */
#define AD_STATE_BOUND 1e-12

/* In check_ranks.c: checks on this rank. All ranks of a check call it. */
ad_status ad_check_rank(ad_comm *comm, const ad_check_job *job) AD_CHECKED;

/* In compare.c: computes the ratio and the error of one parameter from `numel` elements of f64 or f32. `largest` is the
 * largest element, by absolute value, of all reference gradients of the model. */
void ad_compare(const void *dist, const void *ref, ad_dtype dtype, size_t numel, double largest, double *ratio,
                double *max_rel_err);
double ad_largest(const void *values, ad_dtype dtype, size_t numel);
double ad_norm_of(const double *values, size_t numel);
/* returns the cosine of the angle between a and b; NaN if one of them is 0 */
double ad_cosine(const double *a, const double *b, size_t numel);
/* Returns |a-b| / max(|a|,|b|); 0 if a and b are 0, NaN if one of them is not finite. */
double ad_relative_difference(double a, double b);

/* Returns the largest of the parameter's errors, each divided by its bound; NaN: there is no number. */
double ad_param_share(const ad_check_param *param);
/* In diagnose.c: finds the causes that fit a parameter's numbers. `reduced`: the axes that the gradient is summed over.
 * `differs`: the axes along which replicas differ. `odd_rank`: the one rank whose replica differs from all others, or
 * -1. `proportional`: 1 if the gradient is ratio times the reference, within rounding. The functions below replace
 * these causes by a more specific one. */
void ad_diagnose(const ad_mesh *mesh, ad_axes reduced, const ad_check_param *param, int proportional, ad_axes differs,
                 int64_t odd_rank, ad_causes *out);
/* Sets the cause of a gradient whose replicas differ along these axes, are wrong, and add up to the reference: a sum is
 * missing. */
void ad_diagnose_parts(ad_axes differs, ad_causes *causes);
/* If the factor fits, adds the cause that the gradient was averaged over its own ranks and multiplied by the ranks of
 * another module. This cause replaces one that only says that the factor fits no group. `module` and `mesh` are the
 * parameter's. */
void ad_diagnose_averages(const ad_program *program, size_t module, const ad_mesh *mesh, ad_axes reduced,
                          ad_causes *causes);
/* If every gradient of a pipeline with this number of stages was divided by that number, adds that cause to each. */
void ad_diagnose_stages(ad_check_result *result, int64_t stages);
/* Sets the cause of a gradient whose shards along these axes, which have different elements, were summed with each
 * other. */
void ad_diagnose_shards(ad_axes axes, ad_causes *causes);
/* Sets the cause of a parameter whose gradient agrees with the reference, and whose replicas differ after the
 * update. */
void ad_diagnose_updates(ad_axes differs, int64_t odd_rank, ad_causes *causes);
/* Sets the cause of a frozen parameter that a step changed on `rank`; -1: on no rank, but its replicas differ along
 * `differs`. */
void ad_diagnose_frozen(int64_t rank, ad_axes differs, ad_causes *causes);
void ad_diagnose_update(ad_causes *causes); /* sets the cause of a right gradient with a wrong update */

#endif
