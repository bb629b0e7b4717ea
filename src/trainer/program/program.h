/* A program's own object, and the run of one of its phases: what the step function (train/) and program.c share. */
#ifndef PROGRAM_PROGRAM_H
#define PROGRAM_PROGRAM_H
#include "addend/program.h"
#include "module/module.h"

/* A module on paper; the strings and specs are copies. */
typedef struct ad_planned_module {
  ad_module_spec spec;
  ad_param_spec *params;
  ad_state_spec *states;
} ad_planned_module;

struct ad_program {
  const ad_program_kind *kind;
  const void *options; /* the caller's */
  ad_program_setting setting;
  ad_mesh **pools; /* as the kind lists its modules */
  size_t pool_count;
  ad_mesh **meshes; /* of the modules: of each block one */
  size_t *pool_of;  /* each of them */
  size_t mesh_count;
  void *own;       /* of the kind */
  ad_batch *batch; /* NULL: the kind has its own way */
  ad_planned_module *modules;
  size_t module_count;
  ad_count_spec *counts;
  size_t count_count;
  ad_loss_spec *losses;
  size_t loss_count;
  ad_phase *phases;
  size_t phase_count;
  ad_crossing_spec *crossings;
  size_t crossing_count;
  const char **values; /* names of what phases give each other */
  size_t value_count;
};

enum {
  AD_VALUES_MAX = 2048,         /* that phases give each other */
  AD_STAGES_MAX = AD_VALUES_MAX /* of a pipeline: each gives its stream to the next, the first a tied embedding too */
};

/* A value on its way from the phase that gives it to those that need it, in one microbatch. */
typedef struct ad_passed_value {
  ad_tensor *output;       /* on its giver's tape; NULL: not given yet, or on other ranks */
  const ad_array *arrived; /* what a bridge brought from other ranks */
  ad_tensor **inputs;      /* of each phase of this rank the leaf on its tape; NULL: that phase did not ask for it */
  ad_tensor **needed;      /* what each of them got: the leaf, or what became of it over a bridge */
} ad_passed_value;

/* A loss in one microbatch, or what one of its phases has of it. */
typedef struct ad_handed_loss {
  ad_tensor *numerator; /* NULL: not there yet; once the phase has run: divided */
  ad_tensor *start;     /* what backward starts from */
} ad_handed_loss;

struct ad_phase_run {
  const ad_program *program;
  size_t phase, place, microbatch; /* place: the phase's among those of this rank */
  int trains;
  int loss_scale;    /* exponent that the gradients of a step carry */
  int rounds;        /* crossings round to the dtypes of their wires, whether or not anything travels */
  int wire_scale;    /* exponent that gradients carry while they are rounded so */
  double *overflows; /* of each crossing the largest value that its wire made infinite, and of its gradient; NULL */
  ad_tape *tape;
  ad_module *module;
  const ad_parameters *parameters; /* the module's, as its tapes see them now */
  ad_passed_value *values;         /* of the program */
  ad_handed_loss *losses;          /* that this phase hands in, of the program's */
  /* Waits until a value from other ranks is here. NULL: none comes from there. */
  ad_status (*wait)(void *run, size_t value, size_t microbatch);
  void *run;
};

/* Law 6: the first gradient of several is *sum itself, the others are added to it. */
ad_status ad_gradient_joins(ad_array *sum, const ad_array *gradient, int *arrived) AD_CHECKED;
/* Those that the `phases` of this rank left where they needed the value, in the order of backward. */
ad_status ad_passed_gradients(const ad_passed_value *passed, size_t phases, ad_array *sum, int *arrived) AD_CHECKED;
/* Of what crosses, or of its gradient. */
ad_dtype ad_crossing_dtype(const ad_program *program, const ad_crossing_spec *crossing, int backward);
int ad_crossing_is_cut(const ad_crossing_spec *crossing); /* microbatches cut it, as they cut samples */
void ad_batch_destroy(ad_batch *batch);
/* Array number `index` of the program's batch with its name; NULL after the last. */
const ad_array *ad_program_batch_array(const ad_program *program, size_t index, char *name, size_t size);
const ad_array *ad_program_constant_array(const ad_program *program, size_t index, char *name, size_t size);
size_t ad_program_data_bytes(const ad_program *program); /* of data and batch on this rank */
/* The same of a batch; NULL: of none. */
const ad_array *ad_batch_list(const ad_batch *batch, size_t index, char *name, size_t size);
size_t ad_batch_bytes(const ad_batch *batch);
/* The names of its modules, NULL at the end. */
const char *const *ad_program_kind_modules(const ad_program_kind *kind);
/* AD_INVALID unless the record is one of this library's version. */
ad_status ad_program_kind_check(const ad_program_kind *kind) AD_CHECKED;
/* The number of a value; value_count if no phase gives it. */
size_t ad_program_find_value(const ad_program *program, const char *name);
/* That brings the value to the module's phases; NULL: they need none. */
const ad_crossing_spec *ad_program_crossing_of(const ad_program *program, size_t value, size_t module);
int ad_phase_lists(const char *const *names, const char *name); /* whether the list, which may be NULL, has it */

/* The kinds that recipes know, in the order in which they are listed; NULL at the end. */
const ad_program_kind *const *ad_program_kinds(void);
const ad_program_kind *ad_program_kind_find(const char *name); /* NULL: there is none */
/* Makes the program's parts on paper: nothing has memory yet. Checks the options and, when all is there, that every
 * phase needs only what an earlier one gives. AD_INVALID with every mistake, one a line. Owns its meshes; borrows the
 * comm and the options. */
AD_CHECKED ad_status ad_program_create(const ad_program_kind *kind, const void *options,
                                       const ad_program_setting *setting, ad_program **out);
void ad_program_destroy(ad_program *program);
const ad_program_kind *ad_program_kind_of(const ad_program *program);
void *ad_program_own(const ad_program *program);        /* what create made */
int ad_program_has_held_out(const ad_program *program); /* some of its data is kept for validation */
/* Stages of a pipeline on this mesh. AD_INVALID: fewer than pp, which would leave ranks without any. */
ad_status ad_program_find_stages(const ad_program_setting *setting, const ad_mesh *mesh, int64_t *out) AD_CHECKED;
/* 1: names of the whole program are MODULE.NAME; 0: the kind has one module, whose names they are. */
int ad_program_names_modules(const ad_program *program);
/* A parameter's name in the whole program. Returns buffer. */
const char *ad_program_param_name(const ad_program *program, size_t module, size_t param, char *buffer, size_t size);
size_t ad_program_module_count(const ad_program *program);
/* Its parameters may be changed in storage and contract until a module is made from it. */
const ad_module_spec *ad_program_module(const ad_program *program, size_t module);
ad_param_spec *ad_program_param(ad_program *program, size_t module, size_t param);
size_t ad_program_count_count(const ad_program *program);
const ad_count_spec *ad_program_count(const ad_program *program, size_t count);
size_t ad_program_loss_count(const ad_program *program);
const ad_loss_spec *ad_program_loss(const ad_program *program, size_t loss);
size_t ad_program_crossing_count(const ad_program *program);
const ad_crossing_spec *ad_program_crossing(const ad_program *program, size_t crossing);
size_t ad_program_phase_count(const ad_program *program);
const ad_phase *ad_program_phase(const ad_program *program, size_t phase);

#endif
