/* The list of parameters that a model declares. Building it reads like a description: the first failure sticks to the
 * list and is reported once, at the end. Initial values are in initialise.c. */
#ifndef NN_DECLARE_H
#define NN_DECLARE_H
#include "addend/parameter.h"
#include "addend/tensor.h"

typedef struct ad_declarations {
  ad_layout layout; /* of every parameter that is declared next */
  int unit;         /* the same */
  ad_param_declaration *list;
  size_t count, capacity;
  ad_status status; /* the first failure; its message stays in ad_last_error() until the next one */
} ad_declarations;

/* An empty list. Parameters are R on dp and cp, where their users leave addends, I on the other axes
 * that the mesh names, and R on those that it does not. */
ad_declarations ad_declarations_on(const ad_mesh *mesh);
void ad_declarations_release(ad_declarations *list);

/* Each returns the parameter's number; the name is PATH.NAME. */
size_t ad_declare_matrix(ad_declarations *to, const char *path, const char *name, int64_t rows, int64_t columns,
                         double deviation, int decays);
size_t ad_declare_vector(ad_declarations *to, const char *path, const char *name, int64_t numel, double value);

#endif
