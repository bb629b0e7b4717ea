/* What is trained before a run's own training, in a folder of its own inside the run's. */
#ifndef TRAIN_PRETRAIN_H
#define TRAIN_PRETRAIN_H
#include "addend/recipe.h"

typedef struct ad_pretrain {
  ad_recipe *first; /* what is trained before; NULL: nothing, and the rest is empty */
  char *folder;     /* of that run */
  ad_recipe own;    /* the run's recipe, which knows of the weights there; borrows from the one it was made of */
  char *weights;
} ad_pretrain;

/* On paper: nothing is trained yet. Borrows the recipe. */
ad_status ad_pretrain_create(const ad_recipe *recipe, const char *folder, ad_pretrain *out) AD_CHECKED;
void ad_pretrain_release(ad_pretrain *pretrain);

#endif
