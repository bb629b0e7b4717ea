/* The list of known mistakes around a step: what a rank reads, what becomes of gradients after their reduction. */
#ifndef TRAIN_MISTAKES_H
#define TRAIN_MISTAKES_H
#include "base/mistakes.h"

const ad_mistake *ad_train_mistakes(size_t *count);
/* Whether some gradient of a module would count otherwise in the norm on another module's mesh. */
struct ad_run;
int ad_copies_differ_on_other_mesh(const struct ad_run *run);

#endif
