/* A user's program on the installed trainer: it plans the recipe whose path it is given. */
#include <stdio.h>
#include <stdlib.h>
#include <addend/addend.h>

int main(int argc, char **argv) {
  ad_recipe *recipe;
  int64_t ranks = 0;
  if (argc != 2) return 2;
  if (ad_recipe_read(argv[1], NULL, 0, &recipe) || ad_recipe_world(recipe, &ranks)) {
    fprintf(stderr, "%s\n", ad_last_error());
    return 1;
  }
  printf("%lld ranks\n", (long long)ranks);
  ad_recipe_destroy(recipe);
  return 0;
}
