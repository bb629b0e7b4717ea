/* Modules, as a program declares them: parameters that belong together and are on one set of ranks, and states, which
 * no gradient updates. Storage, full copies, reducer and optimizer are created from the declaration. Parameters may be
 * on any view of the module's mesh.
 *
 * For authors of programs. A spec is a plain value, which any thread may read. */
#ifndef ADDEND_MODULE_H
#define ADDEND_MODULE_H
#include "addend/optim.h"
#include "addend/reduce.h"
#include "addend/store.h"
#include "addend/tensor.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* The declaration of a module, which ad_program_add_module takes. */
typedef struct ad_module_spec {
  size_t size;      /* sizeof(ad_module_spec) */
  const char *name; /* unique in its program; copied */
  const ad_mesh *mesh;
  const ad_param_spec *params; /* in the order in which the forward pass uses them; copied */
  size_t param_count;
  const ad_state_spec *states;
  size_t state_count;
  int is_mirror; /* 1: the module only receives values and sends gradients back; it has no optimizer */
  /* modules with the same name here share one gradient norm and one clip; NULL: the norm group of the whole program */
  const char *norm_group;
} ad_module_spec;

#if defined(__cplusplus)
}
#endif
#endif
