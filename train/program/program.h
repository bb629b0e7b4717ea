/* A program's object, and the run of one of its phases. Used by train/step and by program.c. */
#ifndef PROGRAM_PROGRAM_H
#define PROGRAM_PROGRAM_H
#include "addend/program.h"
#include "base/guest.h"
#include "module/module.h"
#include "tensor/tape.h"

/* A module in a program's plan. Strings and specs are copies. */
typedef struct ad_planned_module {
  ad_module_spec spec;
  ad_param_spec *params;
  ad_state_spec *states;
} ad_planned_module;

struct ad_program {
  const ad_program_kind *kind;
  const void *options; /* borrowed */
  ad_program_setting setting;
  ad_mesh **pools; /* one for each module in the kind's list */
  size_t pool_count;
  ad_mesh **meshes; /* one for each module; a pool with blocks or stages has one for each of them */
  size_t *pool_of;  /* for each mesh, the index of its pool */
  size_t mesh_count;
  /* The meshes of all ranks, on which the module and the counts of a program with leaves are; its `pools` and `meshes`
   * have one mesh each, that of this rank's data-parallel position. NULL without leaves. */
  ad_mesh *full_pool, *full_mesh;
  /* What the meshes of all ranks are on the tape of a leaf: first the module's mesh, then the views on
   * which parameters are. The program owns the views' `full`. */
  ad_leaf_mesh *leaf_meshes;
  size_t leaf_mesh_count;
  void *own_options; /* with leaves, the options with views of one position (ad_leaves_take_views); else NULL */
  int64_t *own_list; /* the list that setting.own points to */
  void *own;         /* the object that the kind's `create` made */
  ad_batch *batch;   /* NULL if the kind has its own function that reads the batch */
  ad_planned_module *modules;
  size_t module_count;
  ad_count_spec *counts;
  size_t count_count;
  char **layers; /* names of the layers that can run again in backward */
  size_t layer_count;
  ad_loss_spec *losses;
  size_t loss_count;
  ad_phase *phases;
  size_t phase_count;
  ad_transfer_spec *transfers;
  size_t transfer_count;
  const char **values; /* names of the values that phases give each other */
  size_t value_count;
  unsigned char *learns; /* see ad_program_phase_learns, for each phase; NULL if no parameter is frozen */
};

/* The value of a transfer's `one_way` if the program declared a gradient, but frozen parameters leave none. */
enum { AD_ONE_WAY_FROZEN = 2 };

enum {
  AD_VALUES_MAX = 2048,         /* the most values that phases give each other */
  AD_STAGES_MAX = AD_VALUES_MAX /* the most stages of a pipeline: each gives its stream to the next one, and the
                                 * first also gives a tied embedding */
};

/* A value in one microbatch: between the phase that gives it and the phases that need it. */
typedef struct ad_passed_value {
  ad_tensor *output;       /* the tensor on the giving phase's tape; NULL if it is not given yet, or given on other
                            * ranks */
  const ad_array *arrived; /* the array that came over a bridge from other ranks */
  ad_tensor **inputs;      /* for each phase of this rank, the leaf on that phase's tape; NULL if the phase did not
                            * ask for the value */
  ad_tensor **needed;      /* for each phase, the tensor that it got: the leaf, or the result of the leaf's bridge */
} ad_passed_value;

/* A loss in one microbatch, or the part of it that one phase computes. */
typedef struct ad_submitted_loss {
  ad_tensor *numerator; /* NULL if it is not submitted yet; divided after the phase has run */
  ad_tensor *start;     /* the tensor from which backward starts */
} ad_submitted_loss;

struct ad_phase_run {
  const ad_program *program;
  size_t phase, place, microbatch; /* place: the phase's index among this rank's phases */
  int trains;
  int discards;      /* 1: the results of this run are discarded (ad_phase_discards) */
  int loss_scale;    /* exponent of the power of 2 by which a step's gradients are scaled */
  int rounds;        /* 1: transferred values are rounded to their communication dtypes, even within a rank */
  int comm_scale;    /* exponent of the power of 2 by which gradients are scaled while they are rounded to a
                      * communication dtype */
  double *overflows; /* two for each transfer: the largest value, and the largest gradient, that became infinite in
                      * its communication dtype; NULL: not recorded */
  ad_tape *tape;
  ad_module *module;
  const ad_parameters *parameters; /* the module's parameters, as tapes see them in this microbatch */
  ad_passed_value *values;         /* all values of the program */
  ad_submitted_loss *losses;       /* all losses of the program, as this phase submits them */
  /* Waits until a value from other ranks has arrived. NULL if no value comes from other ranks. */
  ad_status (*wait)(void *run, size_t value, size_t microbatch);
  void *run;
};

/* Calls the function `function` of a program's record and returns its value. If the function ends the process, the
 * process that started this one can report which function did (base/guest.h). */
#define AD_GUEST(kind, function, call)                                    \
  ({                                                                      \
    ad_guest_begin("`%s` of the program `%s`", (function), (kind)->name); \
    __typeof__(call) returned_ = (call);                                  \
    ad_guest_end();                                                       \
    returned_;                                                            \
  })
/* AD_GUEST for functions that return nothing. */
#define AD_GUEST_VOID(kind, function, call) (void)AD_GUEST(kind, function, ((call), 0))
/* AD_GUEST for a function of a phase, or for the phase's backward pass. */
#define AD_GUEST_PHASE(kind, phase, function, call)                                                        \
  ({                                                                                                       \
    ad_guest_begin("%s of phase `%s` of the program `%s`", (function), (phase)->name ? (phase)->name : "", \
                   (kind)->name);                                                                          \
    __typeof__(call) returned_ = (call);                                                                   \
    ad_guest_end();                                                                                        \
    returned_;                                                                                             \
  })

/* Adds a gradient to *sum (law 6, like adds to like). The first gradient becomes *sum; later ones are added to it. */
ad_status ad_gradient_joins(ad_array *sum, const ad_array *gradient, int *arrived) AD_CHECKED;
/* Sums the gradients of a value over those phases of this rank that needed the value, in the order of backward. */
ad_status ad_passed_gradients(const ad_passed_value *passed, size_t phases, ad_array *sum, int *arrived) AD_CHECKED;
/* Returns the dtype in which a value is transferred or, with `backward`, the dtype in which its gradient is. */
ad_dtype ad_transfer_dtype(const ad_program *program, const ad_transfer_spec *transfer, int backward);
int ad_transfer_is_split(const ad_transfer_spec *transfer); /* returns 1 if each microbatch has its own part of the
                                                             * value, because the value is sharded by samples and is
                                                             * no parameter */
void ad_batch_destroy(ad_batch *batch);
/* Returns array `index` of the program's batch and writes its name. Returns NULL after the last array. */
const ad_array *ad_program_batch_array(const ad_program *program, size_t index, char *name, size_t size);
const ad_array *ad_program_constant_array(const ad_program *program, size_t index, char *name, size_t size);
/* Returns numbers that the program measured in a step, and sets their name and count. Returns NULL after the last
 * `index`. */
const double *ad_program_measured(const ad_program *program, size_t index, const char **name, size_t *count);
size_t ad_program_data_bytes(const ad_program *program); /* returns the bytes of data and batch on this rank */
/* Returns array `index` of a batch and writes its name. Returns NULL after the last array, or if `batch` is NULL. */
const ad_array *ad_batch_list(const ad_batch *batch, size_t index, char *name, size_t size);
size_t ad_batch_bytes(const ad_batch *batch);
/* Returns the names of the kind's modules; NULL follows the last. */
const char *const *ad_program_kind_modules(const ad_program_kind *kind);
/* Returns AD_INVALID if the record was built for another version of this library. */
ad_status ad_program_kind_check(const ad_program_kind *kind) AD_CHECKED;
/* Returns the index of the value with this name, or value_count if no phase gives it. */
size_t ad_program_find_value(const ad_program *program, const char *name);
size_t ad_program_giver(const ad_program *program, const char *value); /* returns the index of the phase that gives the
                                                                         * value; some phase must give it */
/* Returns the transfer that brings the value to the module's phases, or NULL if they get it without a transfer. */
const ad_transfer_spec *ad_program_transfer_of(const ad_program *program, size_t value, size_t module);
int ad_phase_lists(const char *const *names, const char *name); /* returns 1 if the list has this name; `names` may
                                                                 * be NULL */

/* The library's own programs; NULL follows the last. Defined in programs/programs.c; nothing else in programs/ is
 * needed by train/. */
extern const ad_program_kind *(*const ad_own_programs[])(void);
/* Returns the kinds that recipes may name, in the order in which --help lists them; NULL follows the last. */
const ad_program_kind *const *ad_program_kinds(void);
const ad_program_kind *ad_program_kind_find(const char *name); /* returns NULL if no kind has this name */
int ad_program_kind_is_custom(const ad_program_kind *kind);    /* returns 1 if the kind is not one of addend's own */
/* Calls the kind's sampling.text. */
const ad_text_options *ad_program_kind_text(const ad_program_kind *kind, const void *options, int64_t *vocabulary);
/* Return buffer with the names of the kinds that can be sampled ("gpt, moe"), and of those that compute architectures
 * of Transformers ("gpt and moe"). */
const char *ad_program_kinds_sampled(char *buffer, size_t size);
const char *ad_program_kinds_exported(char *buffer, size_t size);
/* ad_program_kind_computes returns 1 if the kind computes the architecture with this name. ad_program_kind_computing
 * returns the first kind that does, or NULL if none does. */
int ad_program_kind_computes(const ad_program_kind *kind, const char *architecture);
const ad_program_kind *ad_program_kind_computing(const char *architecture);
/* Plans the program without allocating arrays. Checks the options, and that each phase needs only values that an
 * earlier phase gives. Returns AD_INVALID with all mistakes, one in each line. The program owns its meshes, and borrows
 * comm and options. */
AD_CHECKED ad_status ad_program_create(const ad_program_kind *kind, const void *options,
                                       const ad_program_setting *setting, ad_program **out);
void ad_program_destroy(ad_program *program);
const ad_program_kind *ad_program_kind_of(const ad_program *program);
void *ad_program_own(const ad_program *program);          /* returns the object that the kind's `create` made */
int ad_program_has_validation(const ad_program *program); /* returns 1 if some data is reserved for validation */
/* Sets *out to the number of a pipeline's stages on this mesh. Returns AD_INVALID if it is below pp, which would leave
 * ranks without a stage. */
ad_status ad_program_find_stages(const ad_program_setting *setting, const ad_mesh *mesh, int64_t *out) AD_CHECKED;
/* Sets *out to the text of the part of a view (the text of an AD_KEY_VIEW) that lies on one data-parallel position of
 * the mesh. Release it with ad_release. AD_INVALID if it has ranks of several positions. */
ad_status ad_leaves_view(const ad_mesh *mesh, const char *text, char **out) AD_CHECKED;
/* In leaf_views.c, for leaves.c: ad_leaves_take_views replaces the program's options by a copy whose views are those of
 * one position. ad_leaves_full_view sets *out to the mesh of all ranks on which the parameters of `own`, the module's
 * mesh or a view of one position, are stored. */
ad_status ad_leaves_take_views(ad_program *program) AD_CHECKED;
ad_status ad_leaves_full_view(ad_program *program, const ad_mesh *own, const ad_mesh **out) AD_CHECKED;
void ad_leaves_release_views(ad_program *program);
/* In leaves.c, for programs with leaves. ad_leaves_slice is called before the kind's `create` and replaces the meshes
 * by those of this rank's data-parallel position. ad_leaves_widen is called after it and moves the module and its
 * counts to the meshes of all ranks; AD_INVALID if the gradients or counts cannot be summed by leaves. */
ad_status ad_leaves_slice(ad_program *program) AD_CHECKED;
ad_status ad_leaves_widen(ad_program *program) AD_CHECKED;
/* Returns 1 if names in the program are MODULE.NAME, and 0 if the kind has one module, whose names are used as they
 * are. */
int ad_program_names_modules(const ad_program *program);
/* Bytes of the name MODULE.NAME of a parameter or state, with the final 0. ad_program_add_module refuses longer names,
 * so buffers of this size are large enough for every name in a program. */
enum { AD_PROGRAM_NAME_SIZE = 2 * AD_PARAM_NAME_SIZE };
/* Writes the name that a parameter has in the program, and returns buffer. */
const char *ad_program_param_name(const ad_program *program, size_t module, size_t param, char *buffer, size_t size);
size_t ad_program_module_count(const ad_program *program);
/* Returns the spec of a module. Before a module is created from the spec, the storage and the precision policy of its
 * parameters may be changed (ad_program_param). */
const ad_module_spec *ad_program_module(const ad_program *program, size_t module);
ad_param_spec *ad_program_param(ad_program *program, size_t module, size_t param);
size_t ad_program_count_count(const ad_program *program);
const ad_count_spec *ad_program_count(const ad_program *program, size_t count);
size_t ad_program_loss_count(const ad_program *program);
const ad_loss_spec *ad_program_loss(const ad_program *program, size_t loss);
size_t ad_program_transfer_count(const ad_program *program);
const ad_transfer_spec *ad_program_transfer(const ad_program *program, size_t transfer);
/* Returns the number of other modules or stages to which a transfer brings the value of the parameter with this
 * name. */
size_t ad_program_gives_param(const ad_program *program, const char *name);
/* In frozen.c. Call ad_program_settle_frozen once it is known which parameters are frozen, and before anything is made
 * from the program: it makes transfers of values without a gradient one-way. */
ad_status ad_program_settle_frozen(ad_program *program) AD_CHECKED;
int ad_program_has_frozen(const ad_program *program); /* returns 1 if some parameter is frozen */
/* Returns 0 if the phase has no gradients, because all parameters of its module are frozen and so are those of all
 * phases from whose values it computes; else 1. */
int ad_program_phase_learns(const ad_program *program, size_t phase);
size_t ad_program_phase_count(const ad_program *program);
const ad_phase *ad_program_phase(const ad_program *program, size_t phase);

#endif
