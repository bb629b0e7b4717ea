/* ad_main: gives a user's program the trainer's commands. */
#include <string.h>

#include "addend/main.h"
#include "trainer.h"

enum { COLUMN = 28 };

static const ad_program_kind *const *own;

static void print_key(FILE *file, const ad_key *key) {
  fprintf(file, "    %-*s %s", COLUMN, key->path, key->help ? key->help : "");
  if (!key->fallback)
    fputs(" (must be given)\n", file);
  else
    fprintf(file, *key->fallback ? " (default %s)\n" : " (default: none)\n", key->fallback);
}

/* Prints the recipe keys of the custom program for --help. The keys that every recipe has are in docs/addend.1. */
static void print_kinds(FILE *file) {
  for (const ad_program_kind *const *kind = own; *kind; kind++) {
    fprintf(file, "\nmodel.kind: %s%s%s\n", (*kind)->name, (*kind)->help ? ", " : "",
            (*kind)->help ? (*kind)->help : "");
    for (size_t i = 0; i < (*kind)->key_count; i++) print_key(file, &(*kind)->keys[i]);
  }
}

static const char *name_of(const char *path, char name[CLI_NAME_SIZE]) {
  const char *slash = strrchr(path, '/');
  snprintf(name, CLI_NAME_SIZE, "%s", slash ? slash + 1 : path);
  return name;
}

int ad_main(int argc, char **argv, const ad_program_kind *const *kinds) {
  static const ad_program_kind *const none[] = {NULL};
  char name[CLI_NAME_SIZE];
  own = kinds ? kinds : none;
  ad_status status = ad_cli_register_programs(own);
  if (status) return ad_cli_failed(status);
  ad_cli_program mine = {.name = name_of(argc > 0 && argv[0] ? argv[0] : "addend", name),
                         .help = "Trains, checks and plans distributed gradients of a custom program.",
                         .example = "check RECIPE.yaml --mutate",
                         .print_more = print_kinds};
  return ad_cli_main(argc, argv, &mine);
}
