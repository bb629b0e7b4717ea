/* A program's object, and the run of one of its phases. Used by the step function (train/) and by program.c. */
#ifndef PROGRAM_PROGRAM_H
#define PROGRAM_PROGRAM_H
#include "addend/program.h"
#include "base/guest.h"
#include "module/module.h"

/* A module in a program's plan; strings and specs are copies. */
typedef struct ad_planned_module {
  ad_module_spec spec;
  ad_param_spec *params;
  ad_state_spec *states;
} ad_planned_module;

struct ad_program {
  const ad_program_kind *kind;
  const void *options; /* borrowed from the caller */
  ad_program_setting setting;
  ad_mesh **pools; /* one for each module of the kind's list */
  size_t pool_count;
  ad_mesh **meshes; /* one for each module: a pool has one for each of its blocks or stages */
  size_t *pool_of;  /* for each mesh, the number of its pool */
  size_t mesh_count;
  void *own;       /* the object that the kind's `create` made */
  ad_batch *batch; /* NULL: the kind reads its batch by a function of its own */
  ad_planned_module *modules;
  size_t module_count;
  ad_count_spec *counts;
  size_t count_count;
  ad_loss_spec *losses;
  size_t loss_count;
  ad_phase *phases;
  size_t phase_count;
  ad_transfer_spec *transfers;
  size_t transfer_count;
  const char **values; /* names of the values that pass between phases */
  size_t value_count;
};

enum {
  AD_VALUES_MAX = 2048,         /* values that phases give each other */
  AD_STAGES_MAX = AD_VALUES_MAX /* stages of a pipeline: each gives its stream to the next, the first one also a tied
                                 * embedding */
};

/* A value on its way from the phase that gives it to the phases that need it, in one microbatch. */
typedef struct ad_passed_value {
  ad_tensor *output;       /* the tensor on the giver's tape; NULL: not given yet, or given on other ranks */
  const ad_array *arrived; /* the array that a bridge brought from other ranks */
  ad_tensor **inputs;      /* for each phase of this rank, the leaf on that phase's tape; NULL: the phase did not ask
                            * for it */
  ad_tensor **needed;      /* for each phase, the tensor that it got: the leaf, or the leaf after its bridge */
} ad_passed_value;

/* A loss in one microbatch, or one phase's part of it. */
typedef struct ad_submitted_loss {
  ad_tensor *numerator; /* NULL: not submitted yet; divided once the phase has run */
  ad_tensor *start;     /* the tensor from which backward starts */
} ad_submitted_loss;

struct ad_phase_run {
  const ad_program *program;
  size_t phase, place, microbatch; /* place: the phase's number among this rank's phases */
  int trains;
  int loss_scale;    /* exponent that a step's gradients carry */
  int rounds;        /* 1: transferred values are rounded to their communication dtypes, even within a rank */
  int comm_scale;    /* exponent that gradients carry while they are rounded to a communication dtype */
  double *overflows; /* two for each transfer: the largest value, and gradient, that its dtype made infinite; NULL: not
                      * noted */
  ad_tape *tape;
  ad_module *module;
  const ad_parameters *parameters; /* the module's, as tapes see them now */
  ad_passed_value *values;         /* all values of the program */
  ad_submitted_loss *losses;       /* all losses of the program, as this phase submits them */
  /* Waits until a value from other ranks has arrived. NULL: no value comes from other ranks. */
  ad_status (*wait)(void *run, size_t value, size_t microbatch);
  void *run;
};

/* Calls the function `function` of a program's record and returns its value. If the function ends the process, the
 * process that started this one can report where (base/guest.h). */
#define AD_GUEST(kind, function, call)                                    \
  ({                                                                      \
    ad_guest_begin("`%s` of the program `%s`", (function), (kind)->name); \
    __typeof__(call) returned_ = (call);                                  \
    ad_guest_end();                                                       \
    returned_;                                                            \
  })
/* AD_GUEST for functions that return nothing. */
#define AD_GUEST_VOID(kind, function, call) (void)AD_GUEST(kind, function, ((call), 0))
/* AD_GUEST for a function, or the backward pass, of a phase. */
#define AD_GUEST_PHASE(kind, phase, function, call)                                                        \
  ({                                                                                                       \
    ad_guest_begin("%s of phase `%s` of the program `%s`", (function), (phase)->name ? (phase)->name : "", \
                   (kind)->name);                                                                          \
    __typeof__(call) returned_ = (call);                                                                   \
    ad_guest_end();                                                                                        \
    returned_;                                                                                             \
  })

/* Adds a gradient to *sum (law 6, like adds to like); the first one becomes *sum itself. */
ad_status ad_gradient_joins(ad_array *sum, const ad_array *gradient, int *arrived) AD_CHECKED;
/* Sums the gradients of a value over those phases of this rank that needed it, in the order of backward. */
ad_status ad_passed_gradients(const ad_passed_value *passed, size_t phases, ad_array *sum, int *arrived) AD_CHECKED;
/* The dtype in which a value is transferred; with `backward`, the dtype of its gradient. */
ad_dtype ad_transfer_dtype(const ad_program *program, const ad_transfer_spec *transfer, int backward);
int ad_transfer_is_split(const ad_transfer_spec *transfer); /* whether each microbatch has its own part of the value: it
                                                           * is sharded by samples, and no parameter */
void ad_batch_destroy(ad_batch *batch);
/* Array number `index` of the program's batch, and its name. NULL after the last array. */
const ad_array *ad_program_batch_array(const ad_program *program, size_t index, char *name, size_t size);
const ad_array *ad_program_constant_array(const ad_program *program, size_t index, char *name, size_t size);
/* Numbers that the program measured in a step, with their name and count. NULL after the last. */
const double *ad_program_measured(const ad_program *program, size_t index, const char **name, size_t *count);
size_t ad_program_data_bytes(const ad_program *program); /* memory of data and batch on this rank */
/* Array number `index` of a batch, and its name. NULL after the last array, or if `batch` is NULL. */
const ad_array *ad_batch_list(const ad_batch *batch, size_t index, char *name, size_t size);
size_t ad_batch_bytes(const ad_batch *batch);
/* The names of the kind's modules, NULL at the end. */
const char *const *ad_program_kind_modules(const ad_program_kind *kind);
/* AD_INVALID unless the record was built for this library's version. */
ad_status ad_program_kind_check(const ad_program_kind *kind) AD_CHECKED;
/* Returns the number of the value with this name, or value_count if no phase gives it. */
size_t ad_program_find_value(const ad_program *program, const char *name);
/* The transfer that brings the value to the module's phases. NULL: they need no transfer. */
const ad_transfer_spec *ad_program_transfer_of(const ad_program *program, size_t value, size_t module);
int ad_phase_lists(const char *const *names, const char *name); /* whether the list has the name; names may be NULL */

/* The library's own programs, NULL at the end. Defined in programs/programs.c; train/ needs only this of programs/. */
extern const ad_program_kind *(*const ad_own_programs[])(void);
/* The kinds that recipes may name, in the order in which help lists them; NULL at the end. */
const ad_program_kind *const *ad_program_kinds(void);
const ad_program_kind *ad_program_kind_find(const char *name); /* NULL if there is none */
int ad_program_kind_is_custom(const ad_program_kind *kind);    /* returns 1 if the kind is not one of addend's own */
/* The kind's sampling.text. */
const ad_text_options *ad_program_kind_text(const ad_program_kind *kind, const void *options, int64_t *vocabulary);
/* The names of the kinds that can be sampled ("gpt, moe"); and of those that compute architectures of Transformers
 * ("gpt and moe"). Both return buffer. */
const char *ad_program_kinds_sampled(char *buffer, size_t size);
const char *ad_program_kinds_exported(char *buffer, size_t size);
/* Whether the kind computes the architecture with this name. And the first kind that does; NULL if none does. */
int ad_program_kind_computes(const ad_program_kind *kind, const char *architecture);
const ad_program_kind *ad_program_kind_computing(const char *architecture);
/* Plans the program's parts; allocates no arrays. Checks the options and, at the end, that each phase needs only what
 * an earlier one gives. AD_INVALID with all mistakes, one a line. Owns its meshes; borrows comm and options. */
AD_CHECKED ad_status ad_program_create(const ad_program_kind *kind, const void *options,
                                       const ad_program_setting *setting, ad_program **out);
void ad_program_destroy(ad_program *program);
const ad_program_kind *ad_program_kind_of(const ad_program *program);
void *ad_program_own(const ad_program *program);          /* the object that the kind's `create` made */
int ad_program_has_validation(const ad_program *program); /* whether some data is reserved for validation */
/* The number of a pipeline's stages on this mesh. AD_INVALID if it is below pp, which would leave ranks without a
 * stage. */
ad_status ad_program_find_stages(const ad_program_setting *setting, const ad_mesh *mesh, int64_t *out) AD_CHECKED;
/* Returns 1 if names in the program are MODULE.NAME, 0 if the kind has one module and its names stay as they are. */
int ad_program_names_modules(const ad_program *program);
/* Bytes of MODULE.NAME of a parameter or state, with the final 0. ad_program_add_module refuses longer names, so
 * that buffers of this size are large enough for every name in a program. */
enum { AD_PROGRAM_NAME_SIZE = 2 * AD_PARAM_NAME_SIZE };
/* A parameter's name in the program. Returns buffer. */
const char *ad_program_param_name(const ad_program *program, size_t module, size_t param, char *buffer, size_t size);
size_t ad_program_module_count(const ad_program *program);
/* Until a module is created from the spec, its parameters' storage and precision policy may be changed. */
const ad_module_spec *ad_program_module(const ad_program *program, size_t module);
ad_param_spec *ad_program_param(ad_program *program, size_t module, size_t param);
size_t ad_program_count_count(const ad_program *program);
const ad_count_spec *ad_program_count(const ad_program *program, size_t count);
size_t ad_program_loss_count(const ad_program *program);
const ad_loss_spec *ad_program_loss(const ad_program *program, size_t loss);
size_t ad_program_transfer_count(const ad_program *program);
const ad_transfer_spec *ad_program_transfer(const ad_program *program, size_t transfer);
/* The number of other modules or stages to which a transfer brings the value of the parameter with this name. */
size_t ad_program_gives_param(const ad_program *program, const char *name);
size_t ad_program_phase_count(const ad_program *program);
const ad_phase *ad_program_phase(const ad_program *program, size_t phase);

#endif
