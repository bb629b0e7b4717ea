/* Creates a recipe's program on backend dry. */
#include "recipe/paper.h"
#include "program/program.h"
#include "recipe/recipe.h"

ad_status ad_paper_open(const ad_recipe *recipe, ad_paper *out) {
  int64_t world = 0;
  ad_paper paper = {0};
  AD_TRY(ad_recipe_world(recipe, &world));
  AD_TRY(ad_comm_open_dry(0, world, &paper.comm));
  ad_status status = ad_recipe_program(recipe, paper.comm, 0, &paper.program);
  if (status)
    ad_comm_close(paper.comm);
  else
    *out = paper;
  return status;
}

void ad_paper_close(ad_paper *paper) {
  ad_program_destroy(paper->program);
  ad_comm_close(paper->comm);
  *paper = (ad_paper){0};
}
