/* Modules, as a program declares them: parameters that belong together, on one set of ranks, and state that is no
 * gradient's. Storage, whole copies, reducer and optimizer are made from that. Parameters lie on any view of the
 * module's mesh. */
#ifndef ADDEND_MODULE_H
#define ADDEND_MODULE_H
#include "addend/optim.h"
#include "addend/reduce.h"
#include "addend/store.h"
#include "addend/tensor.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* What a module is, before it has memory. */
typedef struct ad_module_spec {
  size_t size;      /* sizeof(ad_module_spec) */
  const char *name; /* unique in its program; copied */
  const ad_mesh *mesh;
  const ad_param_spec *params; /* in the order of the forward pass; copied */
  size_t param_count;
  const ad_state_spec *states;
  size_t state_count;
  int is_mirror;          /* 1: values arrive and gradients leave; there is no optimizer */
  const char *norm_group; /* modules of one name have one norm and one clip; NULL: the program's */
} ad_module_spec;

#if defined(__cplusplus)
}
#endif
#endif
