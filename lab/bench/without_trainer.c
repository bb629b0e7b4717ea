/* Replaces trainer/ in a program without the trainer: the trainer's cases do not exist there. */
#include "part.h"

static const char *const none[] = {NULL};

const bench_part bench_trainer = {.others = none};
