/* Arguments of the injection points at which a program's states change (base/injection.h). */
#ifndef PROGRAM_STATES_H
#define PROGRAM_STATES_H
#include "addend/program.h"

/* The argument of functions at the injection point AD_INJECT_STATE: the gradient by which one state is about to
 * change. */
typedef struct ad_state_passing {
  ad_comm *comm;
  const ad_array *gradient;
} ad_state_passing;

/* The argument of functions at the injection point AD_INJECT_STATES: the changes of all states of a phase. */
typedef struct ad_states_passing {
  ad_phase_run *at;
  const ad_state_rule *rule;
  const ad_state_change *changes;
  size_t count;
} ad_states_passing;

#endif
