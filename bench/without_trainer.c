/* A program of the core alone, in place of trainer/: none of its cases are there. */
#include "part.h"

static const char *const none[] = {NULL};

const bench_part bench_trainer = {.others = none};
