/* The list of known mistakes inside a program's phases. */
#ifndef PROGRAM_MISTAKES_H
#define PROGRAM_MISTAKES_H
#include "base/mistakes.h"
#include "program/states.h"

const ad_mistake *ad_program_mistakes(size_t *count);
/* Which of these mistakes would change something in this state's gradient (a value of AD_SEAM_STATE), as AD_NEED_...
 * bits. */
ad_needs ad_program_mistakes_show(const ad_state_passing *passing);

#endif
