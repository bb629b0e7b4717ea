/* The known bugs inside the phases of programs. */
#ifndef PROGRAM_KNOWN_BUGS_H
#define PROGRAM_KNOWN_BUGS_H
#include "base/known_bugs.h"
#include "program/states.h"

const ad_known_bug *ad_program_known_bugs(size_t *count);
/* Returns the AD_NEED_... bits of those known bugs that would change the gradient of this state. `passing` is the
 * argument of functions at AD_INJECT_STATE. */
ad_needs ad_program_known_bugs_show(const ad_state_passing *passing);

#endif
