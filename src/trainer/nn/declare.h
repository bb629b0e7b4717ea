/* The list of parameters, and of states, that a model declares. Building it reads like a description: the first failure
 * sticks to the list and is reported once, at the end. Initial values are in initialise.c. */
#ifndef NN_DECLARE_H
#define NN_DECLARE_H
#include "addend/parameter.h"
#include "addend/tensor.h"

typedef struct ad_declarations {
  ad_layout replicated; /* R on dp and cp, where users leave addends; I on the other axes that the mesh names, R on
                         * those that it does not: what a layer starts from that cuts nothing */
  int unit;             /* of every parameter that is declared next */
  ad_param_spec *list;  /* with names of their own; storage is the compute layout, the contract is empty */
  size_t count, capacity;
  ad_state_spec *states; /* with names of their own */
  size_t state_count;
  ad_status status; /* the first failure; its message stays in ad_last_error() until the next one */
} ad_declarations;

/* An empty list. Borrows the mesh. */
ad_declarations ad_declarations_on(const ad_mesh *mesh);
void ad_declarations_release(ad_declarations *list);

/* Takes what the layer states of a parameter: shape, layout, `sharded`, decay and initial values. Its name is
 * PATH.NAME, its unit the list's. Returns its number. */
size_t ad_declare_param(ad_declarations *to, const char *path, const char *name, ad_param_spec spec);
/* The same for a state: dtype, shape, layout and first value. */
size_t ad_declare_state(ad_declarations *to, const char *path, const char *name, ad_state_spec spec);

#endif
