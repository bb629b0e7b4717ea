/* A module's own object. */
#ifndef MODULE_MODULE_H
#define MODULE_MODULE_H
#include "addend/module.h"

typedef struct ad_module_state_slot {
  ad_state_spec spec;
  ad_array array;
} ad_module_state_slot;

struct ad_module {
  ad_comm *comm;
  ad_module_options options;
  char *name;
  const ad_mesh *mesh;
  int is_mirror;
  ad_param_spec *params; /* with names of their own */
  size_t param_count;
  ad_module_state_slot *states;
  size_t state_count;
  ad_store *store;
  ad_reducer *reducer;
  ad_adamw *optimizer;        /* NULL: a mirror */
  ad_array **masters;         /* what the optimizer updates */
  const ad_array **computed;  /* what tapes read */
  const ad_array **gradients; /* what the optimizer is fed */
  ad_parameters parameters;
};

/* ad_module_update with these gradients, one for each parameter, in place of its own reducer's. */
ad_status ad_module_update_from(ad_module *module, const ad_array *const *gradients, double lr, double factor,
                                const char *site) AD_CHECKED;

#endif
