/* The list of known bugs inside a program's phases. */
#ifndef PROGRAM_KNOWN_BUGS_H
#define PROGRAM_KNOWN_BUGS_H
#include "base/known_bugs.h"
#include "program/states.h"

const ad_known_bug *ad_program_known_bugs(size_t *count);
/* The known bugs that would change something in this state's gradient (a value of AD_INJECT_STATE), as AD_NEED_...
 * bits. */
ad_needs ad_program_known_bugs_show(const ad_state_passing *passing);

#endif
