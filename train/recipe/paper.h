/* A recipe's program "on paper": created on backend dry, only to read what it declares. No arrays have memory, and
 * nothing is sent. */
#ifndef RECIPE_PAPER_H
#define RECIPE_PAPER_H
#include "addend/recipe.h"

typedef struct ad_paper {
  ad_comm *comm; /* backend dry, as rank 0 of the recipe's world */
  ad_program *program;
} ad_paper;
ad_status ad_paper_open(const ad_recipe *recipe, ad_paper *out) AD_CHECKED;
void ad_paper_close(ad_paper *paper);

#endif
