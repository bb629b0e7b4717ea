/* What every kind of model has: its parameters, the layout of its batch, and three functions. The public side is
 * model.c; each kind has a file of its own. */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H
#include "addend/model.h"
#include "addend/model.h"
#include "nn/declare.h"

typedef struct ad_model_kind {
  const char *name;
  /* The loss numerator of a batch, P on dp and cp; params[i] is parameter i's leaf on the tape. */
  ad_tensor *(*loss)(const void *own, ad_tape *tape, ad_tensor *const *params, ad_tensor *tokens, ad_tensor *targets);
  /* Of the matrix products of one forward and backward pass over one sequence. */
  double (*flops)(const void *own, const ad_declarations *params);
  void (*destroy)(void *own);
} ad_model_kind;

/* Takes the declarations and `own`, also when it fails. */
ad_status ad_model_create(const ad_model_kind *kind, const ad_mesh *mesh, ad_declarations *params, void *own,
                          ad_model **out) AD_CHECKED;

#endif
