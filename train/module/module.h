/* A module: a set of parameters with their storage, full copies, reducer and optimizer; and states, which have no
 * gradients. */
#ifndef MODULE_MODULE_H
#define MODULE_MODULE_H
#include "addend/module.h"

typedef struct ad_module ad_module;

typedef struct ad_module_options {
  size_t size;      /* sizeof(ad_module_options) */
  ad_dtype compute; /* dtype of the full copies that tapes read; 0: f32 */
  int releases;     /* 1: full copies exist only while they are used (ZeRO-3) */
  int prefetch;     /* how many units are gathered before their use */
  int has_one_pass; /* 1: each microbatch has one forward and one backward pass over the module's parameters */
  uint64_t seed;    /* seed of the initial values */
  ad_reducer_options reducer; /* its lists, and the next one, are needed only while the module is created */
  /* for each group of `reducer`, how the store keeps the copies of its parameters, in place of releases and prefetch;
   * NULL if there is none */
  const ad_store_group *store_groups;
  ad_optimizer_setup optimizer; /* its lists are needed only while the module is created; its comm is the module's */
} ad_module_options;

typedef struct ad_module_state_slot {
  ad_state_spec spec;
  ad_array array;
} ad_module_state_slot;

struct ad_module {
  ad_comm *comm;
  ad_module_options options;
  const ad_mesh *mesh;
  int is_mirror;
  ad_param_spec *params; /* copies of the declared parameters; the copies own their names */
  size_t param_count;
  ad_module_state_slot *states;
  size_t state_count;
  ad_store *store;
  ad_reducer *reducer;
  ad_optimizer *optimizer;    /* NULL if the module is a mirror, which has no updates of its own */
  ad_array **masters;         /* for each parameter, the array that the optimizer updates */
  const ad_array **computed;  /* for each parameter, the array that tapes read */
  const ad_array **gradients; /* for each parameter, the gradient for the optimizer; NULL if the parameter is frozen */
  unsigned char *frozen;      /* for each parameter, 1 if it is frozen; NULL if none is */
  ad_parameters parameters;
};

/* Like ad_module_update, with the given gradients, one for each parameter, instead of the reducer's. */
ad_status ad_module_update_from(ad_module *module, const ad_array *const *gradients, const double *rates, double factor,
                                const char *site) AD_CHECKED;

/* Creates the module with all its parts and initial values. Borrows comm and meshes. Errors are those of
 * ad_store_create, ad_reducer_create and ad_optimizer_create_groups. Collective over the mesh's ranks. */
AD_CHECKED ad_status ad_module_create(ad_comm *comm, const ad_module_spec *spec, const ad_module_options *options,
                                      ad_module **out);
void ad_module_destroy(ad_module *module); /* NULL allowed */
const ad_mesh *ad_module_mesh(const ad_module *module);
size_t ad_module_param_count(const ad_module *module);
/* Returns the index of the parameter with this name, or the count of parameters if there is none. */
size_t ad_module_find(const ad_module *module, const char *name);
size_t ad_module_state_count(const ad_module *module);
ad_array *ad_module_state(ad_module *module, size_t state);
/* The arrays of a parameter, which ad_module_part returns. */
typedef enum ad_param_part {
  AD_PART_VALUE,  /* storage layout, param dtype of the policy */
  AD_PART_MASTER, /* the array that the optimizer updates; the value itself if its dtype is wide */
  AD_PART_STATE,  /* state 0 of the optimizer; AD_PART_STATE + k is its state k */
  /* storage layout, accumulate dtype; valid from the reducer's finish to the next microbatch */
  AD_PART_GRADIENT = AD_PART_STATE + AD_OPTIMIZER_STATES_MAX,
  AD_PART_COUNT
} ad_param_part;
enum { AD_PART_KEPT = AD_PART_GRADIENT }; /* parts before this one are saved in checkpoints */
/* Returns the name of a part of a parameter, such as "value" or "first_moment", for this kind of optimizer; NULL if the
 * optimizer has no such state. */
const char *ad_param_part_name(ad_optimizer_kind kind, ad_param_part part);
/* Returns an array of a parameter, or NULL for a missing part (a mirror has no optimizer's states, a frozen parameter
 * also no gradient). If the value is its own master, both parts are one array. */
ad_array *ad_module_part(ad_module *module, size_t param, ad_param_part part);
/* Returns the parameters for a tape: full copies to compute with, and the module's reducer for gradients. The module
 * owns them. */
const ad_parameters *ad_module_parameters(ad_module *module);
ad_store *ad_module_store(ad_module *module);
ad_reducer *ad_module_reducer(ad_module *module);
ad_optimizer *ad_module_optimizer(ad_module *module); /* NULL if the module is a mirror */
/* Sets *out to 1 if a precision policy has gradients in a dtype that needs a scale (f16), so that the loss should be
 * scaled; else to 0. */
AD_CHECKED ad_status ad_module_needs_loss_scale(const ad_module_spec *spec, int *out);
/* Call it after masters or values were written. Writes the values from the masters, or the masters from the values, and
 * the full copies. Collective. */
AD_CHECKED ad_status ad_module_refresh(ad_module *module, ad_written written);
/* Updates the parameters by the optimizer with the reduced gradients times `factor` and with a learning rate for each
 * group of parameters, then refreshes values and full copies. A mirror is only refreshed. Collective. */
#define ad_module_update(module, rates, factor) ad_module_update_at((module), (rates), (factor), AD_HERE)
AD_CHECKED ad_status ad_module_update_at(ad_module *module, const double *rates, double factor, const char *site);

#endif
