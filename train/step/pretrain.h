/* A training that runs before a run's own training, in a folder inside the run's folder. */
#ifndef TRAIN_PRETRAIN_H
#define TRAIN_PRETRAIN_H
#include "addend/recipe.h"

typedef struct ad_pretrain {
  ad_recipe *first; /* the recipe that is trained first; NULL if there is none, and then the other members are empty */
  char *folder;     /* the folder of the training that comes first */
  ad_recipe own;    /* the run's recipe, with the path of the weights that the first training writes; borrows from
                     * the original recipe */
  /* the path of the weights that the first training writes */
  char *weights;
} ad_pretrain;

/* Derives recipes, folder and paths, and trains nothing. Borrows the recipe. */
ad_status ad_pretrain_create(const ad_recipe *recipe, const char *folder, ad_pretrain *out) AD_CHECKED;
void ad_pretrain_release(ad_pretrain *pretrain);

#endif
