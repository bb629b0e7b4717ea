/* A program that loads both libraries with dlopen, the core first, as a language binding does. They share one core: the
 * last error that the trainer sets is the one that the core returns. Usage: both FOLDER */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <addend/addend.h>

static void *load(const char *folder, const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  return library;
}

int main(int argc, char **argv) {
  void *core = argc == 2 ? load(argv[1], "libaddend.so") : NULL,
       *trainer = core ? load(argv[1], "libaddend_train.so") : NULL;
  if (!trainer) return 2;
  const char *(*last_error)(void);
  ad_status (*parse)(const char *, const char *, const char *const *, size_t, ad_recipe **);
  *(void **)&last_error = dlsym(core, "ad_last_error");
  *(void **)&parse = dlsym(trainer, "ad_recipe_parse");
  if (!last_error || !parse) return 2;
  if (dlsym(trainer, "ad_last_error") != dlsym(core, "ad_last_error")) return fprintf(stderr, "two cores\n"), 1;
  ad_recipe *recipe;
  if (parse("nonsense: 1\n", "both.yaml", NULL, 0, &recipe) != AD_INVALID) return fprintf(stderr, "it was taken\n"), 1;
  if (!strstr(last_error(), "both.yaml: ")) return fprintf(stderr, "the core says: %s\n", last_error()), 1;
  puts("one core");
  return 0;
}
