/* The numbers of one check, in memory that the ranks and the process that started them share: it holds no pointers. */
#ifndef CHECK_RESULT_H
#define CHECK_RESULT_H
#include "addend/check.h"
#include "check/calls.h"
#include "say/cause.h"
#include "program/program.h"

/* What counting a step's addends says of a gradient that is wrong in that step. */
typedef enum ad_accounted {
  AD_NOT_ACCOUNTED,       /* the gradient is right, or its addends were not counted */
  AD_SUM_IS_WRONG,        /* the gradient is not the sum of the addends that ranks submitted */
  AD_ADDENDS_ARE_WRONG,   /* the gradient is that sum, and the addends are wrong */
  AD_ADDENDS_ARE_WEIGHED, /* the gradient is that sum, and each microbatch's addends are wrong by one factor */
  AD_NO_ACCOUNT           /* the sum or the addends are wrong: the count does not show which */
} ad_accounted;

enum { AD_REPORTS_TEXT = 128 };

/* One parameter's numbers, of the step in which they were worst. In f64 the error is that of the worst element; in
 * dtypes that round it is the norm of the differences over the norm of the reference. */
typedef struct ad_check_param {
  char name[AD_PROGRAM_NAME_SIZE], mesh[128], layout[160], storage[160], reduced_over[80];
  int64_t step;
  double ratio;       /* <dist,ref>/<ref,ref>; NaN: not defined */
  double max_rel_err; /* NaN or infinite: fails */
  double bound;
  double one_process;   /* error of one process in the recipe's own dtypes; NaN: nothing rounds but f64 */
  double comm_rounding; /* error of the reference from rounding transferred values between modules; NaN as above */
  double cosine;        /* cosine of the angle between gradient and reference; NaN as above */
  double sum_share;     /* distance to the sum of the ranks' own addends, over what reducing may round; NaN as above */
  double process_share; /* distance of that sum to one process's gradient, over what it may be; NaN as above */
  int reached; /* 1: the reference's gradient is not zero in some step; 0: agreement says nothing of this parameter */
  int replicas_equal;
  int proportional; /* the gradient is ratio * reference, up to rounding */
  ad_accounted accounted;
  double
      counted; /* how often its squares are in the norm; NaN: the norm is right, or none of them is counted wrongly */
  int update_equal; /* 1: one process's optimizer, fed the distributed gradient, gave the same bits */
  ad_causes causes;
} ad_check_param;

/* Steps that were skipped because a gradient overflowed; no number of such a step is judged. */
typedef struct ad_overflow {
  int64_t taken, skipped;
  int scale, taken_at;              /* exponents of the loss scale in the first skipped and in the last taken step */
  char param[AD_PROGRAM_NAME_SIZE]; /* the parameter or transferred value that overflowed in the first skipped step */
} ad_overflow;

typedef struct ad_check_result {
  int complete; /* all numbers below were written */
  double loss_dist, loss_ref, loss_err, loss_bound;
  double norm_dist, norm_ref, norm_err, norm_bound;
  char norm_param[AD_PROGRAM_NAME_SIZE]; /* of parameters that the norm counts more or less than once, the one that
                                            * changes it most; "": all are counted once */
  ad_causes norm_causes;                 /* why it is counted so */
  int initial_equal;                     /* the first step started from the values that one process draws */
  int updates_equal; /* the reference's optimizer, fed the distributed gradient, gave the same values and moments, bit
                        for bit */
  int judges_states; /* the program has states, and nothing rounds but f64 */
  double state_err;  /* worst of a state after a step, and of the numbers that the program measured */
  double free_difference; /* worst relative distance of a parameter to a reference that never restarts; reported, not
                             judged */
  double margin;          /* smallest margin of a choice in all steps; infinite: no choice; below 0: rounding chose */
  double process_share;   /* distance of all gradients together to one process's, over what it may be */
  double choice_error,
      choice_bound; /* the most by which a choice was worse than one that was not chosen, and its bound */
  double difference, derivative, directional_err;
  char stopped[128]; /* the first line of the program whose constant changes with the parameters; "": none was seen */
  ad_overflow overflow;
  char calls[AD_CALLS_TEXT];     /* the first collective that was not as planned, in words; "": all were as planned */
  char reports[AD_REPORTS_TEXT]; /* the first loss or norm that is not the same on all ranks, in words; "": none */
  int64_t call_count;            /* collectives that the first rank posts in a step, and their bytes */
  uint64_t call_bytes;
  int64_t counted; /* tokens that counted in all steps; 0: every gradient is zero, so that agreement shows nothing */
  size_t param_count;
  ad_check_param params[];
} ad_check_result;

/* What is to be checked, and where its numbers go. */
typedef struct ad_check_job {
  const ad_recipe *recipe;
  const ad_check_options *options;
  int64_t steps;
  ad_check_result *result;
  int quiet;    /* 1: no warnings: another check of the same steps has given them */
  int dumps;    /* 1: dumps the steps to options->dump */
  int is_slope; /* 1: the directional check beside the one against one process (check/directional.h) */
} ad_check_job;

ad_status ad_check_result_create(const ad_recipe *recipe, ad_check_result **out) AD_CHECKED; /* shared memory, zeroed */
void ad_check_result_clear(ad_check_result *result); /* sets every number to 0, before the check begins */
void ad_check_result_destroy(ad_check_result *result);
/* check_ranks.c: starts the ranks, lets each check its share, and waits. Status and *result are ad_launch's. */
ad_status ad_check_run(const ad_check_job *job, ad_launch_result *launched) AD_CHECKED;
/* The axes larger than 1 over which the gradient of a parameter of this compute layout is a sum. */
ad_axes ad_check_reduced_axes(const ad_layout *layout);
int ad_check_result_passes(const ad_check_result *result, int directional); /* all judged numbers are in bounds */
/* How many parameters a gradient reached; in a directional check, whether the loss has a slope (0 or 1). */
size_t ad_check_result_reached(const ad_check_result *result, int directional);
/* Returns 1 if ad_check_result_passes does, some token counted, and some gradient is not zero. */
int ad_check_result_matches(const ad_check_result *result, int directional);
/* Fails with AD_MEMORY, before any rank starts, if one of these checks, which run one after another, needs more memory
 * than there is (ad_plan_fits). `root`: "" except in tests. */
ad_status ad_check_fits(const ad_check_job *jobs, size_t count, const char *root) AD_CHECKED;
/* The dtype that ranks are forced to compute in, as in ad_run_options; 0: the recipe's own dtypes. */
ad_dtype ad_check_dtype(const ad_check_options *options);
/* Whether everything is computed in f64 under these options, so that the check's bounds are those of f64. */
int ad_check_is_wide(const ad_recipe *recipe, const ad_check_options *options);
#define AD_WIDE_BOUND 1e-12 /* the bound of the check in f64 */
/* A central difference in f64 keeps about eps^(2/3) = 4e-11 of the loss; the derivative along a random direction is
 * smaller than the loss by up to three digits. */
#define AD_DIRECTIONAL_BOUND 1e-7
/* The bound of states, which are sums of few numbers. */
#define AD_STATE_BOUND 1e-12

/* check_ranks.c: what each rank runs. */
ad_status ad_check_rank(ad_comm *comm, const ad_check_job *job) AD_CHECKED;

/* compare.c: the ratio and the error of one parameter. `numel` elements of f64 or f32; `largest`: the largest element,
 * by absolute value, of all the model's reference gradients. */
void ad_compare(const void *dist, const void *ref, ad_dtype dtype, size_t numel, double largest, double *ratio,
                double *max_rel_err);
double ad_largest(const void *values, ad_dtype dtype, size_t numel);
double ad_norm_of(const double *values, size_t numel);
double ad_cosine(const double *a, const double *b, size_t numel); /* cosine of the angle from a to b; NaN: one is 0 */
/* |a-b| / max(|a|,|b|); 0 if both are 0, NaN if one is not finite. */
double ad_relative_difference(double a, double b);

double ad_param_share(
    const ad_check_param *param); /* the largest of its errors, as a part of its bound; NaN: no number */
/* diagnose.c: the causes that fit a parameter's numbers. `reduced`: the axes that the gradient is summed over;
 * `differs`: the axes along which replicas differ; `odd_rank`: the one rank whose replica differs from all others, or
 * -1; `proportional`: dist is ratio * ref within rounding. The functions below replace the causes by a more specific
 * one. */
void ad_diagnose(const ad_mesh *mesh, ad_axes reduced, const ad_check_param *param, int proportional, ad_axes differs,
                 int64_t odd_rank, ad_causes *out);
/* Replicas differ along these axes, are wrong, and add up to the reference. */
void ad_diagnose_parts(ad_axes differs, ad_causes *causes);
/* If the factor fits, adds the cause that the gradient was averaged over its own ranks and multiplied by the ranks of
 * another module. It replaces a cause that only says that the factor fits no group. `module`, `mesh`: the
 * parameter's. */
void ad_diagnose_averages(const ad_program *program, size_t module, const ad_mesh *mesh, ad_axes reduced,
                          ad_causes *causes);
/* If every gradient of a pipeline of so many stages was divided by them, adds that cause to each. */
void ad_diagnose_stages(ad_check_result *result, int64_t stages);
/* Shards along these axes, which hold different elements, were summed with each other. */
void ad_diagnose_shards(ad_axes axes, ad_causes *causes);
/* Gradients agree, and replicas differ after the update. */
void ad_diagnose_updates(ad_axes differs, int64_t odd_rank, ad_causes *causes);
void ad_diagnose_update(ad_causes *causes); /* the gradient is right, and its update is wrong */

#endif
